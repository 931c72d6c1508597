"""What an engine has to answer before it counts as ready, asked on the head itself.

Each check says nothing where the answer is right, else what is wrong with it. Names and forms of requests and answers
are those of the OpenAI API as SGLang has it (`chat_template_kwargs`, `reasoning_content`, `cached_tokens`).
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from .completion import SHOWN, ApiError, call, hidden, key_of
from .request import Owner
from .system import System

QUESTION = "What is {} + 23? Answer with the number only."
ASKED, SUM = 19, 42
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
TOOL, FILED = "report", "7351"
TASK = f"Work out {ASKED} + 23 and report it with the tool. Then tell the number that the tool files it under."
WORDS = 2000  # of a prompt that has to be remembered: several pages of the engine's cache
FIRST = 100  # of the numbers that streams are asked about: sums of three digits, none of them the usual one

Json = dict[str, Any]


class Wrong(Exception):
    """An answer that is not right; the message says how."""


def smoke(system: System, owner: Owner, desired: Json) -> Json:
    """{"passed": [check, …], "failed": [[check, why], …], "refused": bool, "seconds": s}.

    Desired: {"address", "port", "model", "timeout" of all in seconds, "checks": {check: how often, or true}}. All of
    them are made, whatever the others say. "refused" is that the API wants a key and its container was told none:
    then nothing is known, and nothing failed. An engine that refuses the very key that it was told has failed.
    """
    began = system.clock()
    asking = _Asking(system, desired, key_of(system, owner), began + float(desired["timeout"]))
    answer: Json = {"passed": [], "failed": [], "refused": False}
    for name, wanted in desired["checks"].items():
        _make(asking, name, wanted, answer)
    return {**answer, "seconds": system.clock() - began}


def _make(asking: "_Asking", name: str, wanted: object, answer: Json) -> None:
    """Make one check, and put down how it ended."""
    try:
        CHECKS[name](asking, wanted)
    except ApiError as error:
        unknown = error.refused and not asking.key
        answer["refused"] |= unknown
        answer["failed"] += [] if unknown else [[name, str(error)]]
    except Wrong as wrong:
        answer["failed"].append([name, hidden(str(wrong), asking.key)[:SHOWN]])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        answer["failed"].append([name, f"the answer has another form: {type(error).__name__}"])
    else:
        answer["passed"].append(name)


class _Asking:
    """How the API is asked."""

    def __init__(self, system: System, desired: Json, key: str, until: float) -> None:
        self.system, self.key, self.model = system, key, str(desired["model"])
        self._where, self._until = (str(desired["address"]), int(desired["port"])), until

    def get(self, path: str, body: Json | None = None) -> bytes:
        """The body of an answer. Raises ApiError, also when the time for all checks is up."""
        left = self._until - self.system.clock()
        if left <= 0:
            raise ApiError("the time for all checks is up")
        return call(self._where, path, self.key, left, body)

    def chat(self, messages: str | list[Json], *, thinking: bool = False, **more: object) -> bytes:
        """A chat completion, as it comes."""
        body: Json = {
            "model": self.model,
            "messages": [{"role": "user", "content": messages}] if isinstance(messages, str) else messages,
            "temperature": 0,
            "max_tokens": 4096 if thinking else 256,
            "chat_template_kwargs": {"thinking": thinking},
        }
        return self.get("/v1/chat/completions", {**body, **more})

    def choice(self, messages: str | list[Json], **more: Any) -> Json:
        """The one choice of a chat completion."""
        choice: Json = json.loads(self.chat(messages, **more))["choices"][0]
        return choice


def _models(asking: _Asking, _: object) -> None:
    listed = [str(model["id"]) for model in json.loads(asking.get("/v1/models"))["data"]]
    if asking.model not in listed:
        raise Wrong(f"the API lists {', '.join(listed) or 'nothing'}, wanted {asking.model}")


def _arithmetic(asking: _Asking, _: object) -> None:
    choice = asking.choice(QUESTION.format(ASKED))
    _is_sum(choice["message"]["content"], SUM)
    _ended(choice, "stop")


def _json_schema(asking: _Asking, _: object) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}
    choice = asking.choice(f"What is {ASKED} + 23? Answer in JSON.", response_format=form)
    _is_object(choice["message"]["content"])


def _tool_call(asking: _Asking, _: object) -> None:
    """There and back: the tool is called with the sum, and what it returned is in the answer."""
    tool = {"type": "function", "function": {"name": TOOL, "description": "Reports a sum.", "parameters": SCHEMA}}
    messages: list[Json] = [{"role": "user", "content": TASK}]
    choice = asking.choice(messages, tools=[tool])
    calls = choice["message"].get("tool_calls") or []
    if [one["function"]["name"] for one in calls] != [TOOL]:
        raise Wrong(f"no call of the tool: {choice['message'].get('content')!r}")
    _is_object(calls[0]["function"]["arguments"])
    _ended(choice, "tool_calls")
    returned = {"role": "tool", "tool_call_id": calls[0]["id"], "content": f"It is filed under number {FILED}."}
    said = asking.choice([*messages, {**choice["message"], "role": "assistant"}, returned], tools=[tool])
    if FILED not in str(said["message"]["content"]):
        raise Wrong(f"the answer after the tool's is {said['message']['content']!r}, wanted {FILED} in it")


def _thinking(asking: _Asking, _: object) -> None:
    choice = asking.choice(QUESTION.format(ASKED), thinking=True)
    if not (choice["message"].get("reasoning_content") or "").strip():
        raise Wrong("there is no reasoning_content")
    _is_sum(choice["message"]["content"], SUM)
    _ended(choice, "stop")


def _streams(asking: _Asking, count: object) -> None:
    """Streams at once, each with a question of its own: an answer that is another one's is wrong."""
    numbers = range(FIRST, FIRST + int(str(count)))
    bodies = asking.system.parallel([partial(asking.chat, QUESTION.format(number), stream=True) for number in numbers])
    for number, body in zip(numbers, bodies, strict=True):
        events = [line.removeprefix("data:").strip() for line in body.decode().splitlines() if line.startswith("data:")]
        if not events or events[-1] != "[DONE]":
            raise Wrong(f"a stream of {len(events)} events has no end")
        choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
        _is_sum("".join(choice["delta"].get("content") or "" for choice in choices), number + 23)


def _cached_tokens(asking: _Asking, _: object) -> None:
    prompt = f"{asking.system.clock():.6f}{' word' * WORDS} {QUESTION.format(ASKED)}"
    told = [json.loads(asking.chat(prompt))["usage"].get("prompt_tokens_details") for _ in range(2)]
    if told[1] is None:
        raise Wrong("usage has no prompt_tokens_details: is --enable-cache-report in EXTRA_SGLANG_ARGS?")
    if not told[1].get("cached_tokens"):
        raise Wrong(f"nothing of a prompt of {WORDS} words is cached the second time")


CHECKS: dict[str, Callable[[_Asking, object], None]] = {
    "models": _models,
    "arithmetic": _arithmetic,
    "jsonSchema": _json_schema,
    "toolCall": _tool_call,
    "thinking": _thinking,
    "streams": _streams,
    "cachedTokens": _cached_tokens,
}


def _is_sum(text: object, wanted: int) -> None:
    if str(text).strip() != str(wanted):
        raise Wrong(f"{wanted - 23} + 23 is answered with {text!r}, wanted {wanted}")


def _is_object(text: object) -> None:
    try:
        found = json.loads(str(text))
    except ValueError:
        found = None
    if found != {"sum": SUM}:
        raise Wrong(f"{ASKED} + 23 in JSON is {text!r}, wanted {json.dumps({'sum': SUM})}")


def _ended(choice: Json, wanted: str) -> None:
    if choice["finish_reason"] != wanted:
        raise Wrong(f"the answer ends with {choice['finish_reason']!r}, wanted {wanted!r}")
