"""The one place where the program starts other programs."""

import subprocess
from collections.abc import Callable
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


ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C", "HOME": "/root"}
_LOOK = 0.2  # seconds between two looks whether anybody still waits
_KILL_AFTER = 2  # seconds that a program has to end by itself


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
            env=ENVIRONMENT,
        )
    except FileNotFoundError:
        return Result(ABSENT, "", f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired:
        return Result(TIMED_OUT, "", f"{argv[0]} did not end within {timeout:g} s")
    return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def run_while(argv: list[str], timeout: float, wanted: Callable[[], bool]) -> Result:
    """The same for a program that must not outlive us, nor its use: it is ended once `wanted` says no.

    The kernel ends it when we are killed: `timeout` is told of our death, and passes that on.
    """
    guarded = ["setpriv", "--pdeathsig", "TERM", "timeout", "-k", str(_KILL_AFTER), f"{timeout:g}", *argv]
    try:
        process = subprocess.Popen(
            guarded,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=0o022,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Result(ABSENT, "", f"{guarded[0]} is not installed")
    while True:
        try:
            out, err = process.communicate(timeout=_LOOK)
        except subprocess.TimeoutExpired:
            if not wanted():
                process.terminate()
            continue
        return Result(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
