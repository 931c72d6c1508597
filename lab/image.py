"""The engine's container images, built from the lab's Debian root without a docker daemon.

An archive for `docker load` depends only on the root's and the engine's files: the same input gives
the same bytes, and so the same image ids on every node.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import bytecode, checkpoint, library
from .model import PACKAGE, replace
from .shell import say

SOURCE = PACKAGE / "engine"
EPOCH = "2026-01-01T00:00:00Z"
SECOND = 10**9
LIBRARY = "opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
FLAVOURS = {"sim": "patched", "stock": "stock", "bare": ""}  # tag: kind of library, or none at all
MODEL = "models/DeepSeek-V4.1-Flash"
KEPT = 6  # archives in the cache
ENTRY = """import sys

sys.path.insert(0, "/opt/dsv41")
from engine.__main__ import main

sys.exit(main(sys.argv[1:]))
"""
PACKER = "opt/dsv41/scripts/pack_engram.py"
PACKING = """import os
import sys

sys.path.insert(0, "/opt/dsv41")
from engine.engram import main

sys.exit(main(sys.argv[1:], os.environ))
"""
TOOLS = "dash cat ls sleep sha256sum grep find test env true false head tail wc stat id mkdir rm".split()
UNUSED = re.compile(
    r"test|idlelib|tkinter|ensurepip|lib2to3|distutils|pydoc_data|turtledemo|curses|sqlite3|venv"
    r"|unittest|config-.*|dist-packages|__pycache__|xmlrpc|wsgiref|dbm|msilib|lib-dynload"
)
MODULES = re.compile(
    r"_(json|queue|bz2|lzma|posixshmem|contextvars|asyncio|ctypes|decimal|uuid|multiprocessing)\."
    r"|(mmap|resource|termios)\."
)
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # by docker's word
USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
Layer = dict[str, "bytes | None"]  # path: content, or None for a directory


@dataclass(frozen=True)
class Built:
    """An archive for `docker load`, and the ids of the images in it."""

    archive: Path
    images: dict[str, str]  # tag: id


def build(root: Path, folder: Path, variant: int = 1) -> Built:
    """The archive of a variant, made unless `folder` has one of the same content.

    Variant 1 holds `spark-engine:sim`, whose library is a patched one, `spark-engine:stock`, and
    `spark-engine:bare`, which has none.
    Every other variant N holds `spark-engine:simN`: the same with another id.
    """
    digest = _digest(root, variant)
    record, archive = folder / f"engine-{digest}.json", folder / f"engine-{digest}.tar"
    if not record.exists() or not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        say(f"building the engine's image, variant {variant}")
        partial = archive.with_suffix(".partial")
        images = _save(root, folder, variant, partial)
        partial.replace(archive)
        replace(record, json.dumps(images) + "\n")
        _forget_old(folder)
    return Built(archive, json.loads(record.read_text()))


def _forget_old(folder: Path) -> None:
    """Delete all but the archives that were built last."""
    archives = sorted(folder.glob("engine-*.tar"), key=lambda file: file.stat().st_mtime)
    for old in archives[:-KEPT]:
        for file in (old, old.with_suffix(".json")):
            file.unlink(missing_ok=True)


def _digest(root: Path, variant: int) -> str:
    total = hashlib.sha256(f"{root.name} {variant}".encode())
    for file in [Path(__file__), Path(bytecode.__file__), Path(library.__file__), *sorted(SOURCE.glob("*.py"))]:
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:16]


def _save(root: Path, folder: Path, variant: int, archive: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        stage = Path(scratch)
        _base(root, stage)
        base, engine = pack_folder(stage), pack(_engine(stage))
        machine = _architecture((stage / "usr/bin/python3").resolve())
    members: dict[str, bytes] = {}
    manifest, images = [], {}
    for tag, kind in FLAVOURS.items() if variant == 1 else ((f"sim{variant}", "patched"),):
        layers = [base, engine, pack(_parents(_library(kind, machine)))]
        config = json.dumps(configuration(layers, machine, variant), sort_keys=True).encode()
        name = hashlib.sha256(config).hexdigest()
        paths = [f"{hashlib.sha256(layer).hexdigest()}/layer.tar" for layer in layers]
        members |= {f"{name}.json": config, **dict(zip(paths, layers, strict=True))}
        manifest.append({"Config": f"{name}.json", "RepoTags": [f"spark-engine:{tag}"], "Layers": paths})
        images[f"spark-engine:{tag}"] = f"sha256:{name}"
    members["manifest.json"] = json.dumps(manifest).encode()
    with archive.open("wb") as out:
        _write_tar(out, dict(members))
    return images


def _base(root: Path, stage: Path) -> None:
    """Python, its libraries and a few tools, from the Debian root."""
    python = (root / "usr/bin/python3").resolve().name
    programs = [root / "usr/bin" / name for name in [python, *TOOLS]]
    for name in ("bin", "lib", "lib64", "sbin"):
        (stage / "usr" / name).mkdir(parents=True, exist_ok=True)
        (stage / name).symlink_to(f"usr/{name}")
    standard = root / "usr/lib" / python
    extensions = [file for file in (standard / "lib-dynload").iterdir() if MODULES.match(file.name)]
    needed: set[str] = set()
    for program in [*programs, *extensions]:
        needed |= _libraries(root, program)
        _copy(root, stage, str(program.relative_to(root)))
    unwinder = next(root.glob("lib/*/libgcc_s.so.1"))
    needed.add(str(unwinder.relative_to(root)))  # the C library loads it when a thread exits
    for shared in sorted(needed):
        _copy(root, stage, shared)
    ignore = shutil.ignore_patterns("__pycache__", "test", "tests")
    for file in standard.iterdir():
        target = stage / "usr/lib" / python / file.name
        if UNUSED.fullmatch(file.name):
            continue
        if file.is_dir():
            shutil.copytree(file, target, ignore=ignore)
        elif file.suffix == ".py" and not file.name.startswith("pydoc"):
            shutil.copy(file, target)
    (stage / "usr/bin/python3").symlink_to(python)
    (stage / "usr/bin/sh").symlink_to("dash")
    for name in ("etc", "root", "state", "tmp", "proc", "sys", "dev", "run"):
        (stage / name).mkdir()
    (stage / "etc/passwd").write_text(USERS)
    (stage / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (stage / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", f"/usr/lib/{python}"]
    bytecode.python(stage, *compile_all)


def _engine(stage: Path) -> Layer:
    """The simulator, where the real image has its programs, and a checkpoint."""
    sources = {f"/opt/dsv41/engine/{file.name}": file.read_text() for file in SOURCE.glob("*.py")}
    contents = {path: text.encode() for path, text in sources.items()} | bytecode.compiled(stage, sources)
    files: Layer = {"opt/dsv41/boot.py": ENTRY.encode(), PACKER: PACKING.encode()}
    files |= {path.lstrip("/"): content for path, content in contents.items()}
    files |= {f"{MODEL}/{name}": content for name, content in checkpoint.files().items()}
    return _parents(files)


def _library(kind: str, machine: str) -> Layer:
    """The file that an overlay covers; an image without it is one that no overlay fits."""
    if not kind:
        return {str(Path(LIBRARY).parent): None}
    return {LIBRARY: library.content(library.KINDS[kind], MACHINES[machine])}


def _architecture(program: Path) -> str:
    """docker's word for the machine that a program (ELF) is for."""
    machine = int.from_bytes(program.read_bytes()[18:20], "little")
    return {62: "amd64", 183: "arm64"}[machine]


def _libraries(root: Path, program: Path) -> set[str]:
    """Shared objects that a program of the root needs, as paths inside it."""
    listing = subprocess.run(
        ["chroot", str(root), "ldd", "/" + str(program.relative_to(root))],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return set(re.findall(r"(?:=> |^\s*)(/\S+) \(", listing, re.MULTILINE))


def _copy(root: Path, stage: Path, inside: str) -> None:
    """One file, following links, at its place below /usr."""
    inside = inside.lstrip("/")
    target = stage / (inside if inside.startswith("usr/") else f"usr/{inside}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(root / inside, target)


def _parents(files: Layer) -> Layer:
    """A layer with the directories above its files."""
    above = {str(parent) for path in files for parent in Path(path).parents if str(parent) != "."}
    return {**dict.fromkeys(above), **files}


def pack(layer: Layer) -> bytes:
    """A tar of files, in which nothing but names, modes and contents remains."""
    buffer = io.BytesIO()
    _write_tar(buffer, layer)
    return buffer.getvalue()


def _write_tar(out: Any, layer: Layer) -> None:
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in sorted(layer.items()):
            info = tarfile.TarInfo(path)
            info.mode = 0o755
            if content is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size, info.mode = len(content), 0o644
                archive.addfile(info, io.BytesIO(content))


def pack_folder(stage: Path) -> bytes:
    """The same of a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(stage.rglob("*")):
            archive.add(path, path.relative_to(stage), recursive=False, filter=_plain)
    return buffer.getvalue()


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    if info.issym():
        info.mode = 0o777
    elif info.isdir():
        info.mode = 0o1777 if info.name == "tmp" else 0o755
    else:
        info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info


def configuration(layers: list[bytes], machine: str, variant: int) -> dict[str, Any]:
    """What `docker inspect` shows, with the real image's entry point and health check."""
    return {
        "architecture": machine,
        "os": "linux",
        "created": EPOCH,
        "config": {
            "Entrypoint": ["python3", "-u", "/opt/dsv41/boot.py"],
            "Cmd": ["run"],
            "Env": [
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "PYTHONPATH=/opt/dsv41/adapter",
                "PYTHONDONTWRITEBYTECODE=1",
            ],
            "ExposedPorts": {"8888/tcp": {}},
            "Healthcheck": {
                "Test": ["CMD", "python3", "-S", "/opt/dsv41/boot.py", "health"],
                "Interval": 30 * SECOND,
                "Timeout": 30 * SECOND,
                "StartPeriod": 1800 * SECOND,
                "Retries": 3,
            },
            "Labels": {"spark-engine.simulated": "true", "spark-engine.variant": str(variant)},
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers],
        },
        "history": [{"created": EPOCH, "created_by": what} for what in ("base", "engine", "library")],
    }
