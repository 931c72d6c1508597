"""What the program registers, recorded: every request that the engine would have got."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pulumi.runtime
import pytest
from google.protobuf.json_format import MessageToDict
from pulumi.runtime import mocks, rpc

from components import engine, leftover
from fleet import on_node

COMMAND, CONTAINER, PROVIDER = "command:local:Command", "docker:index/container:Container", "pulumi:providers:docker"
VOLUME = "docker:index/volume:Volume"
STACK = "pulumi:pulumi:Stack"
STATE_ID = "3e9c7f5a"


def _name(urn: str) -> str:
    return urn.rsplit("::", 1)[-1]


@dataclass(frozen=True)
class Resource:
    """One registered resource; other resources are named by their names."""

    name: str
    type: str
    inputs: Mapping[str, Any]
    request: Any

    @cached_property
    def after(self) -> frozenset[str]:
        """What it depends on, by option or by an input."""
        return frozenset(map(_name, self.request.dependencies))

    @property
    def replace_with(self) -> frozenset[str]:
        return frozenset(map(_name, self.request.replace_with))

    @property
    def trigger(self) -> str | None:
        """The value whose change replaces the resource."""
        value = self.request.replacement_trigger
        return value.string_value if value.WhichOneof("kind") == "string_value" else None

    @property
    def deleted_first(self) -> bool:
        return bool(self.request.deleteBeforeReplaceDefined and self.request.deleteBeforeReplace)

    @property
    def ignored(self) -> frozenset[str]:
        return frozenset(self.request.ignoreChanges)

    @property
    def replaced_on(self) -> frozenset[str]:
        return frozenset(self.request.replaceOnChanges)

    @property
    def provider(self) -> str:
        """Its provider's name; empty where the default provider serves it."""
        urn = self.request.provider.rpartition("::")[0]
        return _name(urn) if urn else ""

    @property
    def texts(self) -> dict[str, str | None]:
        """The command lines of a command."""
        return {verb: self.inputs.get(verb) for verb in ("create", "update", "delete")}

    @property
    def environment(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.inputs["environment"]
        return found


class Graph:
    """All resources of one run, by name and in the order of their registration."""

    def __init__(self, resources: list[Resource]) -> None:
        self.resources = {resource.name: resource for resource in resources}
        self.all = tuple(resources)

    def __getitem__(self, name: str) -> Resource:
        return self.resources[name]

    def __contains__(self, name: str) -> bool:
        return name in self.resources

    def of(self, kind: str) -> list[Resource]:
        """All resources of a type."""
        return [resource for resource in self.all if resource.type == kind]

    @property
    def managed(self) -> list[Resource]:
        """All that a provider creates: no components, no providers."""
        return self.of(COMMAND) + self.of(CONTAINER) + self.of(VOLUME)

    def before(self, name: str) -> frozenset[str]:
        """Everything that is done before one resource, near or far."""
        found: set[str] = set()
        todo = [name]
        while todo:
            for each in self[todo.pop()].after - found:
                found.add(each)
                todo.append(each)
        return frozenset(found)


class _Mocks(mocks.Mocks):
    def __init__(self, *, known: bool) -> None:
        self.known = known

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"{args.token} is called: the program asks no provider anything")

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        outputs = {"stdout": STATE_ID} if self.known and args.typ == COMMAND else {}
        return f"{args.name}-id", {**args.inputs, **outputs}


class _Recorder(mocks.MockMonitor):
    def __init__(self, answers: mocks.Mocks) -> None:
        super().__init__(answers)
        self.requests: list[Any] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  # the name is gRPC's
        self.requests.append(request)
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


def record(program: Callable[[], object], *, preview: bool = False, secret_keys: tuple[str, ...] = ()) -> Graph:
    """Run a program against a recording monitor. In a preview no output of a resource is known.

    The ssh configurations that it writes do not belong into the checkout, which other tests in this process want.
    """
    monitor = _Recorder(_Mocks(known=not preview))
    pulumi.runtime.set_mocks(monitor.mocks, project="spark-fabric", stack="test", preview=preview, monitor=monitor)
    pulumi.runtime.set_all_config({}, [f"spark-fabric:{key}" for key in secret_keys])
    run = pulumi.runtime.test(program)  # type: ignore[no-untyped-call]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for module in (on_node, engine, leftover):
            patch.setattr(module, "ROOT", Path(folder))
        run()  # until everything is registered
    return Graph(list(_resources(monitor.requests)))


def _resources(requests: list[Any]) -> Iterator[Resource]:
    for request in requests:
        if request.type == STACK:  # pulumi registers it once a process only
            continue
        yield Resource(request.name, request.type, MessageToDict(request.object), request)


def is_secret(value: Any) -> bool:
    """Whether an input is stored encrypted."""
    return isinstance(value, dict) and value.get(rpc._special_sig_key) == rpc._special_secret_sig


def plain(value: Any) -> Any:
    """An input without the wrappers of secrets."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if is_secret(value):
        return plain(value["value"])
    return {key: plain(one) for key, one in value.items()}
