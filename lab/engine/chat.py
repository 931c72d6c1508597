"""Answers, made the smallest honest way: sums are worked out, the rest is said to be simulated."""

from __future__ import annotations

import json
import re
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


def instance(schema: dict[str, Any], text: str) -> Any:
    """The smallest value that a schema allows; a number is the sum's result, if there is one."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return instance(schema[choice][0], text)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    result = calculate(text)
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: instance(properties.get(name, {}), text)
                for name in schema.get("required", list(properties))}  # fmt: skip
    if kind == "array":
        return [instance(schema.get("items", {}), text)] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return result if result is not None else schema.get("minimum", 0)
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return str(result) if result is not None else text[:40] or "x"


def _tool_call(request: dict[str, Any], text: str) -> dict[str, Any] | None:
    """A call, where tools are offered, none is forbidden and none has answered yet."""
    tools = [tool["function"] for tool in request.get("tools") or [] if "function" in tool]
    choice = request.get("tool_choice", "auto")
    if not tools or choice == "none" or request["messages"][-1].get("role") == "tool":
        return None
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    function = next((tool for tool in tools if tool.get("name") == named), tools[0])
    arguments = json.dumps(instance(function.get("parameters") or {"type": "object"}, text))
    return {
        "id": f"call_{time.time_ns():x}",
        "type": "function",
        "index": 0,
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def answer(request: dict[str, Any], model: str) -> dict[str, Any]:
    """A whole chat.completion for a request; ValueError when it cannot be one."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages: a list with at least one message is needed")
    users = [_texts(m) for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    text = users[-1] if users else ""
    reason, call = "stop", _tool_call(request, text)
    form = request.get("response_format") or {}
    last = messages[-1]
    content: str | None
    if call:
        reason, content = "tool_calls", None
    elif form.get("type") == "json_schema":
        content = json.dumps(instance(form.get("json_schema", {}).get("schema", {}), text))
    elif form.get("type") == "json_object":
        content = json.dumps({"answer": calculate(text)})
    elif last.get("role") == "tool":
        content = _texts(last)
    else:
        result = calculate(text)
        content = UNABLE if result is None else str(result)
    words = (content or "").split()
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if content and limit and len(words) > int(limit):
        content, reason = " ".join(words[: int(limit)]), "length"
    prompt = sum(len(_texts(m).split()) for m in messages if isinstance(m, dict))
    produced = max(1, len((content or "x").split()))
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": None}
    message["tool_calls"] = [call] if call else None
    return {
        "id": f"{time.time_ns():x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.get("model") or model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": produced,
            "total_tokens": prompt + produced,
        },
    }
