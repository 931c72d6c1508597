"""The one place where the program starts other programs."""

import subprocess
from dataclasses import dataclass

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ABSENT = 127
TIMED_OUT = 124


@dataclass(frozen=True)
class Result:
    """How a program ended. `rc` is `ABSENT` where there is none, `TIMED_OUT` where it was killed for its time."""

    rc: int
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.rc == 0

    def reason(self) -> str:
        """Its last words on one line."""
        words = " ".join((self.err.strip() or self.out.strip()).split())
        return words[-600:] if words else f"exit {self.rc}"


def run(argv: list[str], timeout: float) -> Result:
    """Run a program for at most `timeout` seconds.

    The umask is 022 whatever the caller's is: netplan's generator hands it on to files that other daemons must read.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
            umask=0o022,
            env={"PATH": PATH, "LC_ALL": "C", "HOME": "/root"},
        )
    except FileNotFoundError:
        return Result(ABSENT, "", f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired:
        return Result(TIMED_OUT, "", f"{argv[0]} did not end within {timeout:g} s")
    return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
