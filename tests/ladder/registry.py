"""A registry with one image, for pulls: what `docker pull` by digest asks of one, and no more.

Every node finds it on its own loopback, where docker takes plain http: ssh carries it there.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab import api
from lab import node as nodes
from lab.shell import wait_for

PORT = 5055  # on the nodes
TYPE = "application/vnd.docker.distribution.manifest.v2+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"  # docker sees for itself that they are not compressed
CONFIG = "application/vnd.docker.container.image.v1+json"


def _blobs(archive: Path) -> tuple[str, dict[str, bytes]]:
    """The digest of the image's manifest, and everything by its digest."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        blobs[digest] = content
        return {"mediaType": kind, "size": len(content), "digest": digest}

    with tarfile.open(archive) as tar:

        def read(name: str) -> bytes:
            member = tar.extractfile(name)
            assert member
            return member.read()

        (image,) = json.loads(read("manifest.json"))
        manifest = {
            "schemaVersion": 2,
            "mediaType": TYPE,
            "config": blob(read(image["Config"]), CONFIG),
            "layers": [blob(read(layer), LAYER) for layer in image["Layers"]],
        }
    return str(blob(json.dumps(manifest).encode(), TYPE)["digest"]), blobs


def _answers(lab: api.Handle, node: str) -> bool:
    return lab.run(node, f"curl -sf http://127.0.0.1:{PORT}/v2/", check=False).returncode == 0


@contextmanager
def serving(lab: api.Handle, archive: Path) -> Iterator[str]:
    """The reference by which every node can pull the archive's image while the body runs."""
    digest, blobs = _blobs(archive)

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = b"{}" if self.path == "/v2/" else blobs.get(self.path.rpartition("/")[2])
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Type", TYPE if "/manifests/" in self.path else "application/octet-stream")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET  # noqa: N815 - the name is the server's

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    there = ["-N", "-o", "ExitOnForwardFailure=yes", "-R", f"127.0.0.1:{PORT}:127.0.0.1:{server.server_port}"]
    carriers = []
    for name in lab.names:
        ssh, *words = nodes.ssh(lab.lab, f"root@{name}")
        carriers.append(subprocess.Popen([ssh, *there, *words], stdin=subprocess.DEVNULL))
    try:
        for name in lab.names:
            assert wait_for(partial(_answers, lab, name)), name
        yield f"127.0.0.1:{PORT}/engine@{digest}"
    finally:
        for carrier in carriers:
            carrier.terminate()
            carrier.wait()
        server.shutdown()
