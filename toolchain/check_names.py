"""Compare the property names and types of our docker plugin with those of the installed SDK.

``python3 -m toolchain.check_names PLUGIN [PACKAGE_FOLDER]``, to be run after ``pulumi-docker`` was raised: exits with 1
if anything differs. The SDK is read as text, not imported.
"""

import ast
import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

_SCALARS = frozenset({"str", "int", "float", "bool"})


class Comparison(NamedTuple):
    """``problems`` is one line for each difference, ``counts`` how many properties of what were compared,
    ``not_served`` the resource tokens of the SDK that the plugin leaves out."""

    problems: list[str]
    counts: Counter[str]
    not_served: list[str]


class _Class(NamedTuple):
    token: str
    bases: list[str]
    properties: dict[str, ast.expr]


def installed_sdk() -> Path:
    """The folder of ``pulumi_docker`` in this interpreter; raises LookupError without it."""
    found = importlib.util.find_spec("pulumi_docker")
    if not found or not found.origin:
        raise LookupError("pulumi_docker is not installed")
    return Path(found.origin).parent


def compare(names: str, sdk: Path) -> Comparison:
    """Compare what ``pulumi-resource-docker -names`` prints with the SDK's sources."""
    return _Comparer(_read(sdk)).run(json.loads(names))


def _decorated(decorator: ast.expr) -> str:
    """The token or property name that a pulumi decorator carries."""
    if isinstance(decorator, ast.Call):
        for value in [*decorator.args, *(each.value for each in decorator.keywords if each.arg == "name")]:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return value.value
    return ""


def _read(folder: Path) -> dict[str, _Class]:
    classes = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            found: dict[str, ast.expr] = {}
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.returns is not None:
                    getters = [each for each in item.decorator_list if "getter" in ast.unparse(each)]
                    if getters:
                        found[_decorated(getters[0]) or item.name] = item.returns
            token = next(filter(None, map(_decorated, node.decorator_list)), "")
            key = ("outputs." if path.stem == "outputs" else "") + node.name
            classes[key] = _Class(token, [ast.unparse(base) for base in node.bases], found)
    return classes


def _shape(node: ast.expr) -> tuple[str, str]:
    """A type annotation in the plugin's notation, and the class of the object in it (or nothing)."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _shape(ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return (name, "") if name in _SCALARS else ("object", name)
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value).rsplit(".", 1)[-1]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Sequence":
            kind, name = _shape(inner[0])
            return f"list[{kind}]", name
        if outer == "Mapping":
            kind, name = _shape(inner[1])
            return f"map[{kind}]", name
        return _shape(next(each for each in inner if ast.unparse(each) != "None"))  # Optional, Input, Union
    raise ValueError(ast.dump(node))


class _Comparer:
    def __init__(self, classes: dict[str, _Class]) -> None:
        self.classes = classes
        self.result = Comparison([], Counter(), [])

    def run(self, plugin: dict[str, dict[str, Any]]) -> Comparison:
        for token, ours in sorted(plugin.items()):
            name = token.rsplit(":", 1)[-1]
            if token == "config":  # noqa: S105  # a resource token
                self.properties("Provider", ours, self.classes["ProviderArgs"].properties, "", inputs=True)
            elif name.startswith("get"):
                theirs = self.classes[f"{name[0].upper()}{name[1:]}Result"].properties
                theirs = {key: value for key, value in theirs.items() if key != "id"}
                self.properties(name, ours, theirs, "outputs.", inputs=False)
            else:
                if self.classes[name].token != token:
                    self.result.problems.append(f"{name}: token {token}, in the SDK {self.classes[name].token}")
                self.properties(name, ours, self.classes[f"{name}Args"].properties, "", inputs=True)
                self.properties(name, ours, self.classes[name].properties, "outputs.", inputs=False)
        resources = {each.token for each in self.classes.values() if "pulumi.CustomResource" in each.bases}
        self.result.not_served.extend(sorted(resources - set(plugin)))
        return self.result

    def properties(
        self, where: str, ours: dict[str, Any], theirs: dict[str, ast.expr], prefix: str, *, inputs: bool
    ) -> None:
        """Compare the properties of one class; ``prefix`` says whether nested classes are outputs."""
        problems = self.result.problems
        self.result.counts[where.partition(" ")[0]] += len(theirs)
        wanted = {name for name, each in ours.items() if each["input"] or not inputs} - {"id"}
        problems += [f"{where}: {name} is only in the plugin" for name in sorted(wanted - set(theirs))]
        for name, annotation in sorted(theirs.items()):
            if name not in ours:
                problems.append(f"{where}: {name} is only in the SDK")
                continue
            expected, nested = _shape(annotation)
            if expected != ours[name]["type"]:
                problems.append(f"{where}: {name} is {expected} in the SDK, {ours[name]['type']} in the plugin")
            elif nested:
                target = self.classes.get(prefix + nested) or self.classes[nested]
                fields = ours[name].get("fields", {})
                self.properties(f"{where} {name}", fields, target.properties, prefix, inputs=False)


def main() -> int:
    """Print the comparison; returns 1 if there is a difference."""
    names = subprocess.run([sys.argv[1], "-names"], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = compare(names, Path(sys.argv[2]) if sys.argv[2:] else installed_sdk())
    print(f"properties compared, nested ones included: {found.counts.total()}")
    print(f"not served: {', '.join(found.not_served)}")
    print("\n".join(found.problems) or "no difference")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
