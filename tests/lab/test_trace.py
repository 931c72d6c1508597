"""Records of calls, as their readers see them."""

from __future__ import annotations

import json

from lab import trace


def line(**values: object) -> str:
    return json.dumps(values)


BEGIN = {"event": "begin", "call": "7", "tool": "ip", "verb": "addr-add", "argv": ["addr", "add"], "parent": "python3"}
END = {**BEGIN, "event": "end", "code": 0}


def test_begin_and_end_become_one_call_with_all_engines_seen() -> None:
    calls, _ = trace.parse("spark1", [line(**BEGIN, time=10, engines=["a"]), line(**END, time=20, engines=["a", "b"])])
    (call,) = calls
    assert (call.began, call.ended, call.code, call.engines) == (10, 20, 0, {"a", "b"})


def test_a_call_that_was_cut_off_has_no_end() -> None:
    calls, _ = trace.parse("spark1", [line(**BEGIN, time=10, engines=[])])
    assert calls[0].ended is None


def test_events_of_docker_are_in_order_of_time() -> None:
    rows = [line(event="docker", time=t, verb=v, id="x", attributes={}) for t, v in ((5, "die"), (3, "start"))]
    _, events = trace.parse("spark1", rows)
    assert [event.verb for event in events] == ["start", "die"]
