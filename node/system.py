"""The machine as the program sees it: files, kernel values, programs, time.

Everything goes through a `System`, so that tests put a machine of their own in its place. Methods that change
something call `checkpoint` before and after: there a test can end the program as a power cut would.
"""

import fcntl
import hashlib
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from . import httpcall
from . import run as runner
from .limits import CALL
from .run import Result

T = TypeVar("T")

PIECE = 1 << 20  # bytes of a large file in memory at one time
JSON = "Content-Type: application/json\r\n"


@dataclass(frozen=True)
class Meta:
    """What a file has besides its content. `mode` holds the permission bits only."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int


class System:
    """A real machine, or a tree that looks like one (`root`)."""

    docker_socket = "/run/docker.sock"

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)
        self._before = root.rstrip("/")  # a text is enough where there are thousands of paths

    def checkpoint(self, name: str) -> None:
        """Called on both sides of every change."""

    def path(self, path: str) -> Path:
        """Where `path` of this machine lies."""
        return self.root / path.lstrip("/")

    # reading

    def read(self, path: str) -> bytes | None:
        """A file's content, or None where there is none that can be read."""
        try:
            return self.path(path).read_bytes()
        except OSError:
            return None

    def open_to_read(self, path: str) -> BinaryIO | None:
        """A regular file, opened to be read in pieces; None where there is none."""
        return self._open(path)

    def open_no_link(self, path: str) -> BinaryIO | None:
        """The same, and None too where a symbolic link is in the place of the file."""
        return self._open(path, os.O_NOFOLLOW)

    def _open(self, path: str, flags: int = 0) -> BinaryIO | None:
        flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not hold us up
        try:
            handle = os.open(self.path(path), flags)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            return None
        return os.fdopen(handle, "rb")

    def sha256(self, path: str) -> str | None:
        """The digest of a file of any size; None where there is none."""
        file = self.open_to_read(path)
        if file is None:
            return None
        digest = hashlib.sha256()
        with file:
            while piece := file.read(PIECE):
                digest.update(piece)
        return digest.hexdigest()

    def text(self, path: str) -> str | None:
        """A short text file's content without the blank space around it, or None."""
        data = self.read(path)
        return None if data is None else data.decode(errors="replace").strip()

    def meta(self, path: str) -> Meta | None:
        """Mode, owner and time of change of a file, or None where there is none."""
        try:
            found = self.path(path).lstat()
        except OSError:
            return None
        return Meta(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns)

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder; none where there is no folder."""
        try:
            return sorted(os.listdir(self._before + path))
        except OSError:
            return []

    def link(self, path: str) -> str | None:
        """Where a symbolic link leads in the end, or None where `path` does not exist."""
        place = self.path(path)
        if not os.path.lexists(place):
            return None
        return os.path.realpath(place)

    def target(self, path: str) -> str:
        """What a symbolic link holds, "" where there is none."""
        try:
            return os.readlink(self._before + path)
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return os.path.lexists(self.path(path))

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder at `path`."""
        return self.path(path).is_dir()

    def size(self, path: str) -> int | None:
        """A file's size in bytes, following links; None where there is none."""
        try:
            return self.path(path).stat().st_size
        except OSError:
            return None

    def stamp(self, path: str) -> list[int] | None:
        """What changes with a file, following links; None where there is none.

        Size, times of content and of anything, disk, inode. Who writes into a file can put back all of it but the
        time of anything, which the kernel sets.
        """
        try:
            found = self.path(path).stat()
        except OSError:
            return None
        return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino]

    def space(self, path: str) -> dict[str, int] | None:
        """What is left where `path` is: bytes, and files; 0 of 0 files where their number has no limit."""
        try:
            found = os.statvfs(self.path(path))
        except OSError:
            return None
        return {
            "free": found.f_bavail * found.f_frsize,
            "total": found.f_blocks * found.f_frsize,
            "files_free": found.f_favail,
            "files_total": found.f_files,
        }

    def folder(self, path: str) -> dict[str, Any] | None:
        """Owner and mode of a folder, following links, and whether its file system takes writes; None where is none."""
        try:
            found = self.path(path).stat()
            flags = os.statvfs(self.path(path)).f_flag
        except OSError:
            return None
        if not stat.S_ISDIR(found.st_mode):
            return None
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        return {"owner": f"{found.st_uid}:{found.st_gid}", "mode": mode, "writable": not flags & os.ST_RDONLY}

    # changing

    def write(self, path: str, data: bytes, meta: Meta) -> None:
        """Put a file in place in one step, on disk before this returns."""
        self.checkpoint(f"before write {path}")
        with self._replacing(path, meta) as file:
            file.write(data)
        self.checkpoint(f"after write {path}")

    def receive(self, path: str, content: BinaryIO, size: int, sha256: str, meta: Meta) -> None:
        """The same with the next `size` bytes of a stream. Raises `OSError` where these are fewer, or others."""
        self.checkpoint(f"before receive {path}")
        with self._replacing(path, meta) as file:
            copy(content, file, size, sha256)
        self.checkpoint(f"after receive {path}")

    @contextmanager
    def _replacing(self, path: str, meta: Meta) -> Iterator[BinaryIO]:
        """A new file that takes the place of `path` at the end of the body, unless that fails."""
        target = self.path(path)
        fresh = target.with_name(f".{target.name}.spark-fabric-new")
        fresh.unlink(missing_ok=True)  # of a run that was killed
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                if (meta.uid, meta.gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, meta.uid, meta.gid)
                os.fchmod(handle, meta.mode)
                if meta.mtime_ns:
                    os.utime(handle, ns=(meta.mtime_ns, meta.mtime_ns))
                os.fsync(handle)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        os.rename(fresh, target)
        self._sync_folder(target.parent)

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens where there is none."""
        target = self.path(path)
        if not os.path.lexists(target):
            self.clean(path)
            return
        self.checkpoint(f"before remove {path}")
        self.clean(path)
        target.unlink(missing_ok=True)
        self._sync_folder(target.parent)
        self.checkpoint(f"after remove {path}")

    def clean(self, path: str) -> None:
        """Remove what a killed `write` of this path may have left."""
        target = self.path(path)
        target.with_name(f".{target.name}.spark-fabric-new").unlink(missing_ok=True)

    def make_folder(self, path: str, mode: int = 0o755) -> None:
        """Make a folder and those above it."""
        target = self.path(path)
        if target.is_dir():
            return
        self.make_folder(os.path.dirname(path.rstrip("/")) or "/")
        self.checkpoint(f"before mkdir {path}")
        target.mkdir(exist_ok=True)
        target.chmod(mode)
        self._sync_folder(target.parent)
        self.checkpoint(f"after mkdir {path}")

    def remove_folder(self, path: str) -> bool:
        """Remove a folder if it is empty; whether it is gone."""
        if not self.path(path).is_dir():
            return True
        self.checkpoint(f"before rmdir {path}")
        try:
            self.path(path).rmdir()
        except OSError:
            return False
        self._sync_folder(self.path(path).parent)
        self.checkpoint(f"after rmdir {path}")
        return True

    def set_value(self, path: str, value: str) -> None:
        """Write a value of the kernel (a file under /proc/sys)."""
        self.checkpoint(f"before set {path}")
        self.path(path).write_text(value + "\n")
        self.checkpoint(f"after set {path}")

    def change(self, argv: list[str], timeout: float = CALL) -> Result:
        """Run a program that changes the machine."""
        self.checkpoint(f"before {' '.join(argv)}")
        result = self.run(argv, timeout)
        self.checkpoint(f"after {' '.join(argv)}")
        return result

    def docker_call(self, method: str, path: str, timeout: float, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of a request to Docker; `body` is JSON. Raises `OSError` where it does not answer."""
        if method != "GET":
            self.checkpoint(f"before docker {method} {path}")
        answer = httpcall.call(str(self.path(self.docker_socket)), method, path, timeout, body, JSON if body else "")
        if method != "GET":
            self.checkpoint(f"after docker {method} {path}")
        return answer

    def docker_server(self) -> str:
        """What Docker says that it is. Raises `OSError` where it does not answer."""
        return httpcall.server(str(self.path(self.docker_socket)), "/_ping", 10)

    # other

    def frames(self, netdev: str, ethertype: int) -> socket.socket:
        """A socket for whole Ethernet frames of one type on one port, which it leaves as it is. Raises `OSError`."""
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        try:
            found.bind((netdev, ethertype))
        except OSError:
            found.close()
            raise
        return found

    def reach(self, address: str, port: int, timeout: float) -> str:
        """Why nothing takes a TCP connection there, "" where something does."""
        try:
            socket.create_connection((address, port), timeout).close()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def run(self, argv: list[str], timeout: float = CALL) -> Result:
        """Run a program that only looks."""
        return runner.run(argv, timeout)

    def run_for_caller(self, argv: list[str], timeout: float) -> Result:
        """The same for a program that ends when whoever asked us is gone, and when we are."""
        return runner.run_while(argv, timeout, lambda: not self.caller_gone())

    def parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of `calls`, made side by side."""
        results: dict[int, T] = {}
        errors: list[BaseException] = []

        def do(index: int) -> None:
            try:
                results[index] = calls[index]()
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                errors.append(error)

        threads = [threading.Thread(target=do, args=(index,)) for index in range(1, len(calls))]
        for thread in threads:
            thread.start()
        if calls:
            do(0)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [results[index] for index in range(len(calls))]

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def clock(self) -> float:
        """Seconds of a clock that nobody sets."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary folder that is gone afterwards."""
        folder = self.path(f"/run/spark-fabric-{os.getpid()}-{threading.get_ident()}")
        folder.mkdir(mode=0o700, parents=True)
        try:
            yield folder
        finally:
            for parent, folders, files in os.walk(folder, topdown=False):
                for name in files:
                    os.unlink(f"{parent}/{name}")
                for name in folders:
                    os.rmdir(f"{parent}/{name}")
            folder.rmdir()

    def environ(self, name: str) -> str:
        """A variable of our environment, "" where it is not set."""
        return os.environ.get(name, "")

    def caller_gone(self) -> bool:
        """Whether nobody is left who could read our answer: the connection that we were started by is gone."""
        poll = select.poll()
        poll.register(1, 0)  # what speaks against writing is reported unasked
        return bool(poll.poll(0))

    def let_go(self) -> bool:
        """Whether whoever asked has ended our stdin. Only where nothing follows a request of one line."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        return bool(poll.poll(0))

    def open_lock(self, path: str) -> Any:
        """An open file for `flock`, made where it is missing; programs that we start do not inherit it."""
        return open(os.open(self.path(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "r+")

    def open_lock_to_look(self, path: str) -> Any | None:
        """The same for a look only: None where there is no such file."""
        try:
            return self.path(path).open()
        except OSError:
            return None

    def try_lock(self, file: Any, shared: bool = False) -> bool:
        """Take the lock of an open file if nobody holds it."""
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def copy(content: BinaryIO, file: BinaryIO, size: int, sha256: str) -> None:
    """Copy the next `size` bytes of a stream. Raises `OSError` where these are fewer, or have another digest."""
    digest, left = hashlib.sha256(), size
    while left and (piece := content.read(min(left, PIECE))):
        file.write(piece)
        digest.update(piece)
        left -= len(piece)
    if left:
        message = f"{size - left} of {size} bytes came"
        raise OSError(message)
    if digest.hexdigest() != sha256:
        message = f"what came is {digest.hexdigest()[:12]} and not {sha256[:12]}: it has changed since the preview"
        raise OSError(message)
