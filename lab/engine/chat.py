"""Answers, made the smallest honest way: sums are worked out, the rest is said to be simulated.

What a request gets follows from what it asks: its schema, its tools, the thinking that it wants, and what was asked
before it.
"""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

SUM = re.compile("(-?\\d+)\\s*(\\+|-|\\*|\u00d7|plus|minus|times)\\s*(-?\\d+)")
UNABLE = "This is a simulated engine: it can add, subtract and multiply two numbers."


def _texts(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)


def calculate(text: str) -> int | None:
    """Result of the last sum in a text."""
    found = SUM.findall(text)
    if not found:
        return None
    left, operator, right = found[-1]
    a, b = int(left), int(right)
    return a + b if operator in "+plus" else a * b if operator in "*\u00d7times" else a - b


def instance(schema: dict[str, Any], text: str, result: int | None) -> Any:
    """The smallest value that a schema allows; a number is the sum's result, if there is one."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return instance(schema[choice][0], text, result)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: instance(properties.get(name, {}), text, result)
                for name in schema.get("required", list(properties))}  # fmt: skip
    if kind == "array":
        return [instance(schema.get("items", {}), text, result)] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return result if result is not None else schema.get("minimum", 0)
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return str(result) if result is not None else text[:40] or "x"


def _tool_call(request: dict[str, Any], text: str, result: int | None) -> dict[str, Any] | None:
    """A call, where tools are offered, none is forbidden and none has answered yet."""
    tools = [tool["function"] for tool in request.get("tools") or [] if "function" in tool]
    choice = request.get("tool_choice", "auto")
    if not tools or choice == "none" or request["messages"][-1].get("role") == "tool":
        return None
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    function = next((tool for tool in tools if tool.get("name") == named), tools[0])
    arguments = json.dumps(instance(function.get("parameters") or {"type": "object"}, text, result))
    return {
        "id": f"call_{time.time_ns():x}",
        "type": "function",
        "index": 0,
        "function": {"name": function.get("name"), "arguments": arguments},
    }


class Prompts:
    """What was asked before, as pages of words: what prompts begin alike with is not computed again."""

    PAGE = 256

    def __init__(self) -> None:
        self._pages: set[int] = set()
        self._turn = threading.Lock()

    def cached(self, words: list[str]) -> int:
        """How many words at the beginning of a prompt are known, in whole pages; all of it is, from now on."""
        ends = range(self.PAGE, len(words) + 1, self.PAGE)
        pages = [hash(tuple(words[:end])) for end in ends]
        with self._turn:
            known = next((index for index, page in enumerate(pages) if page not in self._pages), len(pages))
            self._pages.update(pages)
        return known * self.PAGE


class Chat:
    """Whole answers of one engine. `slip` is added to every sum, `report` tells what of a prompt was known."""

    def __init__(self, model: str, *, slip: int = 0, report: bool = False) -> None:
        self.model, self._slip, self._report = model, slip, report
        self._prompts = Prompts()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """A whole chat.completion for a request; ValueError when it cannot be one."""
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages: a list with at least one message is needed")
        users = [_texts(m) for m in messages if isinstance(m, dict) and m.get("role") == "user"]
        text = users[-1] if users else ""
        result = calculate(text)
        result = None if result is None else result + self._slip
        reason, call = "stop", _tool_call(request, text, result)
        content = None if call else _content(request, text, result)
        reason = "tool_calls" if call else reason
        words = (content or "").split()
        limit = request.get("max_completion_tokens") or request.get("max_tokens")
        if content and limit and len(words) > int(limit):
            content, reason = " ".join(words[: int(limit)]), "length"
        thinks = (request.get("chat_template_kwargs") or {}).get("thinking")
        thought = f"I am asked: {text[-200:]} It is a sum: {result is not None}." if thinks else None
        return {
            "id": f"{time.time_ns():x}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.get("model") or self.model,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": content,
                        "reasoning_content": thought,
                        "tool_calls": [call] if call else None,
                    },
                    "logprobs": None,
                    "finish_reason": reason,
                }
            ],
            "usage": self._usage(messages, content),
        }

    def _usage(self, messages: list[Any], content: str | None) -> dict[str, Any]:
        prompt = " ".join(_texts(m) for m in messages if isinstance(m, dict)).split()
        produced = max(1, len((content or "x").split()))
        cached = {"cached_tokens": self._prompts.cached(prompt)}
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": produced,
            "total_tokens": len(prompt) + produced,
            "prompt_tokens_details": cached if self._report else None,
        }


def _content(request: dict[str, Any], text: str, result: int | None) -> str:
    """What is said, in the form that is asked for. After a tool has answered, its answer."""
    form = request.get("response_format") or {}
    last = request["messages"][-1]
    if form.get("type") == "json_schema":
        return json.dumps(instance(form.get("json_schema", {}).get("schema", {}), text, result))
    if form.get("type") == "json_object":
        return json.dumps({"answer": result})
    if last.get("role") == "tool":
        return _texts(last)
    return UNABLE if result is None else str(result)
