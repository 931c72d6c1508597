"""One rank of the engine: rendezvous, network, weights, then steps until it is ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from . import faults, library, weights
from .log import EngineLog, plain
from .nccl import Communicator, NcclError
from .rendezvous import Group, PeerLost, RendezvousError
from .roce import Roce, RoceError
from .server import Api
from .settings import PIP_LIBRARY, Settings
from .wire import WireError

BYTES_PER_TOKEN = 1670.75
STEP_BYTES = 60 << 10  # of one decode step's all-reduce
TOKEN_BYTES = 10 << 10  # of a prompt's all-reduce, for each token
FATAL = (
    library.LibraryError, NcclError, PeerLost, RendezvousError, RoceError,
    weights.WeightsError, WireError,
)  # fmt: skip


class Rank:
    """All that one process of the engine holds."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.say = settings, EngineLog(settings.rank)
        self.faults = faults.parse(settings.env.get("ENGINE_FAULT", ""), settings.rank)
        spoiled = faults.find(self.faults, "sum")
        self.bad_device = spoiled.argument if spoiled else ""
        self.steps = 0
        self.turn = threading.Lock()
        self.stuck = False
        self.roce: Roce | None = None

    def start(self) -> None:
        """Everything before the first request."""
        settings, say = self.settings, self.say
        pip = Path(settings.env.get("NCCL_PIP_SO") or PIP_LIBRARY)
        loaded = library.load(settings.env, pip)
        say(f"sglang is using nccl=={loaded.release}")
        if faults.find(self.faults, "early"):
            raise RendezvousError("simulated crash before the rendezvous")
        say("Init torch distributed begin.")
        self.group = Group(settings)
        if settings.nodes > 1:
            self.group.connect_mesh(settings)
        self.nccl = Communicator(settings, loaded, self.group, say)
        self.nccl.start()
        self.nccl.qualify(self.bad_device)
        limit = settings.number("ENGINE_PEER_S", 1800)
        if settings.flag("SGLANG_ROCE_ALLREDUCE"):
            self.roce = Roce(settings, self.group)
            self.roce.start(limit, say)
        self._load()
        self.group.exchange("loaded", True, limit, patient=True)
        self._profile()

    def _load(self) -> None:
        settings, say = self.settings, self.say
        if settings.flag("DSV41_SERIAL_WEIGHT_LOAD"):
            plain("DSV41: synchronous weight copies enabled (UMA safeguard)")
        say("Load weight begin.")
        seconds = settings.number("ENGINE_LOAD_S", 0.2)
        if self.faults and (fault := next((f for f in self.faults if f.kind in FAULTY), None)):
            time.sleep(seconds / 2)
            FAULTY[fault.kind](say)
        total = weights.load(settings.model_path, seconds, say)
        say(f"Load weight end. read {total} bytes of files")

    def _profile(self) -> None:
        """Lines that show which parts of the configuration are in force."""
        env, say, on = self.settings.env, self.say, self.settings.flag
        number = self.settings.number
        if self.roce and (gather := int(number("DSV41_ROCE_GATHER", 0))):
            say(f"DSV41_ROCE_GATHER ready: max {gather} bytes per rank")
        if on("DSV41_SHARED_PAD_K"):
            width = 2304 // self.settings.tp
            padded = -(-width // 128) * 128
            say(f"DSV41 shared-expert padding K: (5120, {width}) -> (5120, {padded})")
        if on("DSV41_INDEXER_CHUNKED"):
            say("DSV41 indexer chunked (sglang#39187 backport) ARMED: simulated")
        if on("DSV41_MOE_B12X_NEXT"):
            say("[moe_b12x_next] armed: routed MoE on b12x_next (simulated)")
            say(f"[moe_b12x_next] INFO: routed MoE at EP_SIZE={self.settings.ep} (simulated)")
        if on("DSV41_HC_FUSED"):
            say("DSV41 hc_fused: first call (4096 rows) bit-identical to stock")
        if env.get("SPEC_ALGO", "DSPARK") not in ("off", "none", "0"):
            gamma = int(number("DSPARK_BLOCK_SIZE", 3))
            say(f"Initialized DSpark draft runner. simulated gamma={gamma}, verify_num_draft_tokens={gamma + 1}")
        tokens = int(min(number("MAX_TOTAL_TOKENS", 320000), number("ENGINE_KV_TOKENS", 6_300_000)))
        say(f"DSV4 memory calculation: bytes_per_full_token={BYTES_PER_TOKEN} simulated full_token={tokens}")
        say(
            f"max_total_num_tokens={tokens}, "
            f"chunked_prefill_size={env.get('CHUNKED_PREFILL_SIZE', '2048')}, "
            f"max_running_requests={env.get('MAX_RUNNING_REQUESTS', '4')}, "
            f"context_len={env.get('CONTEXT_LENGTH', '409600')}"
        )

    def _collective(self, number: int, tokens: int, limit: float) -> str:
        """All ranks' part of one step, for a prompt and a token of the answer; what went wrong, if it failed.

        RoCEnante sums what it takes, and NCCL the rest, or at least the token.
        """
        prompt = tokens * TOKEN_BYTES
        taken = [size for size in (STEP_BYTES, prompt) if self.roce and 0 < size <= self.roce.max_size]
        deadline = time.monotonic() + limit
        if self.group.size > 1:
            self.group.exchange(f"step {number}", True, limit, patient=True)
        try:
            lost = self.roce.step(number, limit, taken) if self.roce else ""
            if not lost:
                left = 0 if prompt in taken else prompt
                self.nccl.all_reduce(max(STEP_BYTES, left), number, limit, self.bad_device)
                return ""
        except WireError as error:
            lost = str(error)
        self.say(f"step {number}: {lost}")
        self.stuck = True
        time.sleep(max(0.0, deadline - time.monotonic()))
        return f"step {number}: {lost}"

    def step(self, tokens: int = 0) -> str:
        """Rank 0, for one request with so many tokens: one step of all ranks. Hangs when a rank is gone."""
        limit = self.settings.watchdog
        deadline = time.monotonic() + limit
        if not self.turn.acquire(timeout=limit):
            return f"no step finished within {limit:g} s"
        try:
            left = max(0.1, deadline - time.monotonic())
            if self.stuck:
                time.sleep(left)
                return f"no step finished within {limit:g} s"
            self.steps += 1
            self.group.go(self.steps, tokens, left)
            return self._collective(self.steps, tokens, left)
        except PeerLost as error:
            self.stuck = True
            self.say(f"Watchdog: step {self.steps} not finished within {limit:g} s: {error}")
            return str(error)
        finally:
            self.turn.release()

    def work(self) -> NoReturn:
        """Other ranks: take part in every step."""
        forever = 10.0**7
        try:
            while True:
                self._collective(*self.group.await_go(forever), forever)
        except PeerLost:
            pass
        while True:  # without rank 0 the others stay, and do nothing
            signal.pause()

    def serve(self) -> NoReturn:
        """Rank 0: the API."""
        api = Api(self.settings, self.step)
        if told := self.settings.env.get("ENGINE_OPEN_FD"):
            os.write(int(told), b"1")
        self.say(f"Uvicorn running on http://{self.settings.host}:{self.settings.port} (simulated)")
        api.serve_forever()
        raise SystemExit(0)


def _crash(say: EngineLog) -> NoReturn:
    say("Scheduler hit an exception: RuntimeError: simulated crash while loading")
    raise SystemExit(1)


def _hang(_: EngineLog) -> NoReturn:
    while True:
        signal.pause()


def _oom(_: EngineLog) -> NoReturn:
    os._exit(137)


FAULTY = {"crash": _crash, "hang": _hang, "oom": _oom}


def _end(*_: object) -> NoReturn:
    os._exit(0)


def run(settings: Settings) -> int:
    """Entry point of the child process."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    try:
        rank = Rank(settings)
        rank.start()
    except (*FATAL, ValueError) as error:
        EngineLog(settings.rank)(f"Scheduler hit an exception: {error}")
        return 1
    death = faults.find(rank.faults, "die")
    if death:
        timer = threading.Timer(float(death.argument), lambda: os._exit(1))
        timer.daemon = True
        timer.start()
    try:
        if settings.rank:
            rank.work()
        rank.serve()
    except OSError as error:
        rank.say(f"Scheduler hit an exception: {error}")
        return 1
    finally:
        sys.stdout.flush()
