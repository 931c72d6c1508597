"""How much a cable carries one way in one plane: `ib_write_bw` of perftest, between its two ends.

The fleet's side asks both ends at once; one receives, the other sends and has the figure. Nothing is written on either.
The program ends with whoever asked for it, however that ends: a stranger at the device would keep the next `up` away.
"""

from typing import Any

from .alive import reasons
from .perftest import CONNECT, figure, once_heard, unheard
from .request import ENGINE_ALIVE, FAILED, Failure
from .run import ABSENT, TIMED_OUT
from .system import System

TOOL = "ib_write_bw"
BYTES = 1 << 20  # of a message: large, so that the rate of the wire counts and nothing else
COLUMN = "BW average[Gb/sec]"  # with --report_gbits
SPARE = 8.0  # seconds beyond the writes themselves, for queue pairs and for retries on a bad wire

Json = dict[str, Any]


def bandwidth(system: System, node: str, desired: Json) -> Json:
    """Be one end: {"gbits": what was carried, in Gb/s, or None, "problem": what the device or the wire did, or ""}.

    Desired: {"hca", "gid_index", "port" of TCP, "seconds" of writes}, and for the end that sends "host", the
    management address of the other one. Where nothing could be measured, "unmeasured" in the answer says why; with
    "absent" it is for want of `ib_write_bw`. Raises `Failure` where an engine runs, or somebody else uses RDMA: both
    would be measured, and disturbed.
    """
    alive = reasons(system)
    if alive:
        raise Failure(ENGINE_ALIVE, *(f"{node}: {line}" for line in alive), "measure while nothing uses the fabric")
    if system.caller_gone():
        raise Failure(FAILED, "whoever asked is gone: nothing was measured")
    if system.run([TOOL, "--version"]).rc == ABSENT:
        return _answer(unmeasured=f"{node} has no {TOOL} (package perftest)", absent=True)
    words = [TOOL, "-d", desired["hca"], "-x", str(desired["gid_index"]), "-s", str(BYTES), "-F", "--report_gbits"]
    words += ["-D", str(desired["seconds"]), "-p", str(desired["port"])]
    limit = float(desired["seconds"]) + SPARE
    host = desired.get("host")
    if host:
        result = once_heard(system, lambda: system.run_for_caller([*words, host], limit))
    else:
        result = system.run_for_caller(words, CONNECT + limit)
    if result.ok and not host:
        return _answer()
    if unheard(result) or (not host and result.rc == TIMED_OUT):
        return _answer(unmeasured=f"{node} and {host or 'its other end'} did not meet by TCP, port {desired['port']}")
    gbits = figure(result.out, COLUMN) if result.ok else None
    if gbits is None:
        return _answer(problem=f"{node} {desired['hca']}: {TOOL} did not complete: {result.reason()}")
    return _answer(gbits)


def _answer(gbits: float | None = None, problem: str = "", **more: Any) -> Json:
    return {"gbits": gbits, "problem": problem, **more}
