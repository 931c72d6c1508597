"""What an engine is asked before it counts as ready, against the API of the simulated engine and against wrong ones."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from lab.engine.server import Api
from lab.engine.settings import parse
from node.smoke import CHECKS, smoke

from .helpers import OWNER
from .machine import Machine
from .test_proof import KEY, inspected

Json = dict[str, Any]
ALL: Json = {**dict.fromkeys(CHECKS, True), "streams": 8}
MODEL = "deepseek-v4.1-flash"
REPORT = {"EXTRA_SGLANG_ARGS": "--sleep-on-idle --enable-cache-report"}


@contextmanager
def serving(env: Mapping[str, str]) -> Iterator[int]:
    """The port of a simulated engine's API."""
    with Api(parse({"HOST": "127.0.0.1", "SERVER_PORT": "0", **env}), lambda _: "") as api:
        threading.Thread(target=api.serve_forever, args=(0.01,), daemon=True).start()
        yield api.server_address[1]
        api.shutdown()


def asked(port: int, checks: Json | None = None, **more: object) -> Json:
    return {"address": "127.0.0.1", "port": port, "model": MODEL, "timeout": 30, "checks": checks or ALL, **more}


def test_an_engine_that_is_right_passes_everything(machine: Machine) -> None:
    with serving(REPORT) as port:
        found = smoke(machine, OWNER, asked(port))
        assert (found["failed"], found["refused"]) == ([], False)
        assert found["passed"] == list(ALL)
        again = smoke(machine, OWNER, asked(port, {"cachedTokens": True}))
    assert again["passed"] == ["cachedTokens"]


def test_an_engine_that_computes_wrongly_fails_every_sum_with_what_it_said(machine: Machine) -> None:
    with serving({**REPORT, "ENGINE_FAULT": "wrong"}) as port:
        found = smoke(machine, OWNER, asked(port))
    assert found["passed"] == ["models", "cachedTokens"]
    failed = dict(found["failed"])
    assert failed["arithmetic"] == failed["thinking"] == "19 + 23 is answered with '43', wanted 42"
    assert failed["streams"] == "100 + 23 is answered with '124', wanted 123"
    assert failed["jsonSchema"] == """19 + 23 in JSON is '{"sum": 43}', wanted {"sum": 42}"""
    assert failed["toolCall"] == failed["jsonSchema"]


def test_an_engine_that_does_not_report_its_cache_says_what_it_needs(machine: Machine) -> None:
    with serving({}) as port:
        found = smoke(machine, OWNER, asked(port, {"cachedTokens": True}))
    assert "is --enable-cache-report in EXTRA_SGLANG_ARGS?" in dict(found["failed"])["cachedTokens"]


def test_the_model_of_the_settings_has_to_be_listed(machine: Machine) -> None:
    with serving({"SERVED_MODEL_NAME": "other"}) as port:
        found = smoke(machine, OWNER, asked(port, {"models": True, "arithmetic": True}))
    assert found["failed"] == [["models", f"the API lists other, wanted {MODEL}"]]


def test_an_engine_that_refuses_the_key_that_it_was_told_fails(machine: Machine) -> None:
    inspected(machine, {"Config": {"Env": ["API_KEY=another-key"]}, "State": {}})
    with serving({"API_KEY": KEY}) as port:
        found = smoke(machine, OWNER, asked(port, {"models": True}))
    ((check, why),) = found["failed"]
    assert (check, why[:10], found["refused"]) == ("models", "status 401", False)
    assert "another-key" not in json.dumps([found, machine.calls])


def test_the_key_is_that_of_the_container_and_one_that_nobody_told_is_no_failure(machine: Machine) -> None:
    with serving({"API_KEY": KEY}) as port:
        without = smoke(machine, OWNER, asked(port, {"models": True, "arithmetic": True}))
        assert (without["passed"], without["failed"], without["refused"]) == ([], [], True)
        inspected(machine, {"Config": {"Env": [f"API_KEY={KEY}"]}, "State": {}})
        found = smoke(machine, OWNER, asked(port))
    assert found["passed"] == [name for name in ALL if name != "cachedTokens"]
    assert KEY not in json.dumps([without, found, machine.calls])


def test_nobody_who_answers_fails_every_check(machine: Machine) -> None:
    found = smoke(machine, OWNER, asked(1, {"models": True, "streams": 2}))
    assert [name for name, _ in found["failed"]] == ["models", "streams"]
    assert all("refused" in why for _, why in found["failed"])


def test_no_check_is_begun_after_the_time_is_up(machine: Machine) -> None:
    clock = iter([0.0, 0.0, 31.0, 31.0])
    machine.clock = lambda: next(clock)  # type: ignore[method-assign]
    with serving({}) as port:
        found = smoke(machine, OWNER, asked(port, {"models": True, "arithmetic": True}))
    assert (found["passed"], found["failed"]) == (["models"], [["arithmetic", "the time for all checks is up"]])


def choice(reason: str = "stop", **message: Any) -> str:
    said = {"content": "42", "reasoning_content": "a thought", "tool_calls": None, **message}
    choices = [{"message": said, "finish_reason": reason}]
    return json.dumps({"choices": choices, "usage": {"prompt_tokens_details": {"cached_tokens": 0}}})


def called(name: str, arguments: object) -> Json:
    return {"content": None, "tool_calls": [{"id": "1", "function": {"name": name, "arguments": arguments}}]}


def one_stream(*events: str) -> str:
    return "".join(f"data: {event}\n\n" for event in events)


WRONG: list[tuple[str, Callable[[int], str], str]] = [
    ("arithmetic", lambda _: choice("length"), "the answer ends with 'length', wanted 'stop'"),
    ("arithmetic", lambda _: choice(content=None), "19 + 23 is answered with None, wanted 42"),
    ("arithmetic", lambda _: "{}", "the answer has another form: KeyError"),
    ("arithmetic", lambda _: "<html>", "the answer has another form: JSONDecodeError"),
    ("models", lambda _: '{"data": []}', f"the API lists nothing, wanted {MODEL}"),
    ("jsonSchema", lambda _: choice(content="It is 42."), """19 + 23 in JSON is 'It is 42.', wanted {"sum": 42}"""),
    ("toolCall", lambda _: choice(), "no call of the tool: '42'"),
    ("toolCall", lambda _: choice("tool_calls", **called("other", '{"sum": 42}')), "no call of the tool: None"),
    ("toolCall", lambda _: choice("stop", **called("report", '{"sum": 42}')), "wanted 'tool_calls'"),
    (
        "toolCall",
        lambda turn: choice() if turn else choice("tool_calls", **called("report", '{"sum": 42}')),
        "the answer after the tool's is '42', wanted 7351 in it",
    ),
    ("thinking", lambda _: choice(reasoning_content=None), "there is no reasoning_content"),
    ("thinking", lambda _: choice(content="41"), "19 + 23 is answered with '41', wanted 42"),
    ("streams", lambda _: one_stream('{"choices": []}'), "a stream of 1 events has no end"),
    ("streams", lambda _: "", "a stream of 0 events has no end"),
    (
        "streams",
        lambda _: one_stream('{"choices": [{"delta": {"content": "12"}}]}', "[DONE]"),
        "100 + 23 is answered with '12', wanted 123",
    ),
    ("cachedTokens", lambda _: choice(), "nothing of a prompt of 2000 words is cached the second time"),
]


@pytest.mark.parametrize(("check", "answer", "why"), WRONG, ids=[f"{name}: {why}" for name, _, why in WRONG])
def test_every_way_in_which_an_answer_is_wrong_is_told(
    check: str, answer: Callable[[int], str], why: str, machine: Machine
) -> None:
    turns = iter(range(100))

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the library's
            """Nothing of it is a test's output."""

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(answer(next(turns)).encode())

        do_POST = do_GET  # noqa: N815  # the name is the library's

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        found = smoke(machine, OWNER, asked(server.server_address[1], {check: 1}))
        server.shutdown()
    ((name, told),) = found["failed"]
    assert (name, found["passed"]) == (check, [])
    assert why in told
