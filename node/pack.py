"""The program as one zip, made on the operator's side. Imports nothing of it, so that it can be loaded alone."""

import contextlib
import hashlib
import importlib.util
import io
import marshal
import os
import sys
import threading
from pathlib import Path

MAIN = "import sys\nfrom node.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_UNCHECKED = (1).to_bytes(4, "little")  # a .pyc that is used without looking at the source's time (PEP 552)


def program(cache: Path) -> bytes:
    """The zip; the same sources give the same bytes, and `cache` is a folder that keeps them.

    Beside each source lies its compiled form. A node with the same version of Python starts in half the time with it;
    another version takes the source.
    """
    sources = {path.name: path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))}
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER + MAIN.encode())
    for name, source in sources.items():
        digest.update(b"%s %d\n%s" % (name.encode(), len(source), source))
    kept = cache / f"node-program-{digest.hexdigest()[:16]}-{sys.implementation.cache_tag}.zip"
    with contextlib.suppress(FileNotFoundError):  # a run of other sources may be removing it right now
        return kept.read_bytes()
    data = _zip(sources)
    cache.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f".{kept.name}.{os.getpid()}.{threading.get_ident()}")
    partial.write_bytes(data)
    partial.replace(kept)
    for old in cache.glob(f"node-program-*-{sys.implementation.cache_tag}.zip"):
        if old != kept:
            old.unlink(missing_ok=True)
    return data


def _zip(sources: dict[str, bytes]) -> bytes:
    import zipfile  # noqa: PLC0415 - it is packed once, and looked up by every command

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:

        def add(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, compresslevel=1)

        add("__main__.py", MAIN.encode())
        for name, source in sources.items():
            code = compile(source, f"node/{name}", "exec", dont_inherit=True, optimize=0)
            head = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
            add(f"node/{name}", source)
            add(f"node/{name}c", head + marshal.dumps(code))
    return buffer.getvalue()
