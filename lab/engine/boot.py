"""The container's first process: checks, the engine as a child, then smoke, warm-up and Ready."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import faults, weights
from .log import plain
from .settings import ALL_HOSTS, BadSettings, Settings, parse

SMOKE = "What is 19 + 23? Answer with the number only."
REDACTED = "[redacted]"


def arguments(settings: Settings) -> list[str]:
    """The command line that the real boot program would start."""
    env = settings.env

    def value(name: str, default: str) -> str:
        return env.get(name) or default

    words = [
        "python", "-m", "sglang.launch_server",
        "--model-path", str(settings.model_path),
        "--served-model-name", settings.model_name,
        "--trust-remote-code", "--load-format", "safetensors",
        "--tp", str(settings.tp), "--ep-size", str(settings.ep),
        "--attention-backend", value("ATTENTION_BACKEND", "dsv4"),
        "--moe-runner-backend", value("MOE_RUNNER_BACKEND", "flashinfer_mxfp4"),
        "--mem-fraction-static", value("MEM_FRACTION_STATIC", "0.95"),
        "--chunked-prefill-size", value("CHUNKED_PREFILL_SIZE", "2048"),
        "--context-length", value("CONTEXT_LENGTH", "409600"),
        "--max-running-requests", value("MAX_RUNNING_REQUESTS", "4"),
        "--cuda-graph-max-bs-decode",
        value("CUDA_GRAPH_MAX_BS_DECODE", value("MAX_RUNNING_REQUESTS", "4")),
        "--random-seed", "0", "--enable-decoder-swa-bounded-replay",
        "--tool-call-parser", "deepseekv41", "--reasoning-parser", "deepseek-v41",
        "--host", settings.host, "--port", str(settings.port),
    ]  # fmt: skip
    if value("SPEC_ALGO", "DSPARK") not in ("off", "none", "0"):
        words += ["--speculative-algorithm", value("SPEC_ALGO", "DSPARK")]
        words += ["--speculative-dspark-block-size", value("DSPARK_BLOCK_SIZE", "3")]
    if os.path.exists(value("DSPARK_SPS_TABLE", "/state/dspark_sps.json")):
        words += ["--speculative-dspark-sps-table-path", value("DSPARK_SPS_TABLE", "")]
        words += ["--speculative-dspark-align-verify-tokens-to-graph-tier"]
    if os.path.exists(value("DSPARK_STS_TABLE", "/state/dspark_sts.json")):
        words += ["--speculative-dspark-confidence-sts-path", value("DSPARK_STS_TABLE", "")]
    address = ":".join(map(str, settings.rendezvous))
    words += ["--nnodes", str(settings.nodes), "--node-rank", str(settings.rank)]
    words += ["--dist-init-addr", address]
    words += ["--max-total-tokens", value("MAX_TOTAL_TOKENS", "320000")]
    words += shlex.split(env.get("EXTRA_SGLANG_ARGS", ""))
    return words + (["--api-key", REDACTED] if settings.api_key else [])


def _keep(settings: Settings, name: str, text: str) -> None:
    """Replace a file of the state directory; mode 0600 from its first byte."""
    settings.state.mkdir(parents=True, exist_ok=True)
    path = settings.state / name
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(text)
    if name != "api-key":
        path.chmod(0o644)


def ask(settings: Settings, path: str, body: Any = None, seconds: float = 60) -> Any:
    """One request to our own API."""
    host = "127.0.0.1" if settings.host in (ALL_HOSTS, "::", "") else settings.host
    request = urllib.request.Request(
        f"http://{host}:{settings.port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    if settings.api_key:
        request.add_header("Authorization", f"Bearer {settings.api_key}")
    with urllib.request.urlopen(request, timeout=seconds) as reply:  # noqa: S310
        content = reply.read()
    return json.loads(content) if content else None


def _chat(settings: Settings, text: str, seconds: float, **more: Any) -> dict[str, Any]:
    body = {
        "model": settings.model_name,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        **more,
    }
    reply: dict[str, Any] = ask(settings, "/v1/chat/completions", body, seconds)["choices"][0]
    return reply


def smoke(settings: Settings) -> bool:
    """Ask what must be answered rightly; the outcome is kept in /state/smoke.json."""
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    tool = {"type": "function", "function": {"name": "note", "parameters": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    results: dict[str, bool] = {}
    try:
        choice = _chat(settings, SMOKE, 120)
        results["arithmetic"] = choice["message"]["content"].strip() == "42" and choice["finish_reason"] == "stop"
        if settings.env.get("SMOKE_QUICK", "1") != "1":
            choice = _chat(settings, SMOKE, 120, response_format=form)
            results["json_schema"] = json.loads(choice["message"]["content"]) == {"sum": 42}
            choice = _chat(settings, SMOKE, 120, tools=[tool])
            called = choice["message"]["tool_calls"][0]["function"]
            results["tool_call"] = json.loads(called["arguments"]) == {"sum": 42}
    except (OSError, ValueError, KeyError, TypeError) as error:
        plain(f"smoke: {error}")
        results["answered"] = False
    passed = all(results.values())
    _keep(settings, "smoke.json", json.dumps({"ok": passed, "checks": results}, indent=1) + "\n")
    plain(f"smoke: {'passed' if passed else 'FAILED'} {json.dumps(results)}")
    return passed


def warm_up(settings: Settings) -> None:
    """Longer and longer prompts, then many at once; a failure is told and forgotten."""
    lengths = [int(n) for n in settings.env.get("WARMUP_PROMPT_WORDS", "12,200,900,3600").split(",")]
    try:
        for length in lengths:
            _chat(settings, "word " * length, 60)
        many = int(settings.number("MAX_RUNNING_REQUESTS", 4))
        with ThreadPoolExecutor(many) as pool:
            list(pool.map(lambda k: _chat(settings, f"Describe {k}", 60), range(many)))
        plain(f"warm-up: {len(lengths)} prompts and {many} at once")
    except (OSError, ValueError, KeyError) as error:
        plain(f"warm-up failed, going on: {error}")


def _announce(settings: Settings, child: subprocess.Popen[bytes], opened: int) -> int | None:
    """Rank 0: wait for health, then smoke, warm-up, Ready. The exit code if it comes to that.

    The child says on a pipe that the port is its own, lest another server's health be taken for it.
    """
    deadline = time.monotonic() + settings.number("READY_TIMEOUT_S", 3600)
    left, _, _ = select.select([opened], [], [], settings.number("READY_TIMEOUT_S", 3600))
    if left and not os.read(opened, 1):
        return child.wait()
    while True:
        if child.poll() is not None:
            return child.returncode
        try:
            ask(settings, "/health", seconds=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                plain("boot: timed out waiting for /health")
                return 1
            time.sleep(settings.number("ENGINE_POLL_S", 0.1))
    if not settings.flag("SKIP_SMOKE") and not smoke(settings):
        return 1
    if settings.flag("WARMUP"):
        warm_up(settings)
    where = "Key is in /state/api-key." if settings.api_key else "no API key."
    plain(f"Ready: API on port {settings.port} (rank 0)" + (f". {where}" if settings.api_key else f", {where}"))
    return None


def _end(child: subprocess.Popen[bytes] | None) -> None:
    """SIGTERM to the process group, and SIGKILL to what does not heed it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(os.getpgrp(), signal.SIGTERM)
    if not child:
        return
    try:
        child.wait(8)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


class _Ended(Exception):
    """A signal asked for the end."""


def _ended(*_: object) -> None:
    raise _Ended


def run(env: Mapping[str, str]) -> int:
    """Container command `run`."""
    signal.signal(signal.SIGTERM, _ended)
    signal.signal(signal.SIGINT, _ended)
    try:
        settings = parse(env)
        faults.parse(env.get("ENGINE_FAULT", ""), settings.rank)
        weights.check_config(settings.model_path)
    except (BadSettings, ValueError, weights.WeightsError) as error:
        plain(f"boot: {error}")
        return 1
    except _Ended:
        return 0
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    child: subprocess.Popen[bytes] | None = None
    try:
        argv = arguments(settings)
        _keep(settings, "launch.json", json.dumps({"rank": settings.rank, "argv": argv}) + "\n")
        if settings.api_key and settings.rank == 0:
            _keep(settings, "api-key", settings.api_key + "\n")
        plain("boot: " + " ".join(argv))
        paths = [str(Path(__file__).resolve().parents[1]), env.get("PYTHONPATH", "")]
        opened, told = os.pipe()
        more = {"PYTHONPATH": ":".join(filter(None, paths)), "ENGINE_OPEN_FD": str(told)}
        child = subprocess.Popen([sys.executable, "-u", "-m", "engine", "rank"], env={**env, **more}, pass_fds=[told])
        os.close(told)
        code = _announce(settings, child, opened) if settings.rank == 0 else None
        if code is None:
            code = child.wait()
        if child.poll() is None:
            _end(child)
        plain(f"boot: engine of rank {settings.rank} ended with {code}")
        return code if code >= 0 else 128 - code
    except _Ended:
        _end(child)
        plain(f"boot: rank {settings.rank} ended as asked")
        return 0
    except OSError as error:
        plain(f"boot: {error}")
        return 1


def health(env: Mapping[str, str]) -> int:
    """Container command `health`: asks the API on rank 0; other ranks live while process 1 does."""
    try:
        settings = parse(env)
        if settings.rank == 0:
            ask(settings, "/health", seconds=10)
    except (BadSettings, OSError) as error:
        plain(f"unhealthy: {error}")
        return 1
    return 0
