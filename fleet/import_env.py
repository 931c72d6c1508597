"""`python -m fleet import-env`: the launcher's file as a stack file, and in words what is left of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import yaml

from fleet import bash
from fleet.carried import Left
from fleet.launcher_file import is_secret
from fleet.moving import Moved, move
from fleet.on_node import ROOT
from fleet.problems import NAMESPACE

WRITTEN, USAGE, TO_CORRECT = 0, 2, 3
WIDTH = 120
CARRIAGE_RETURNS = "Its lines end in CR LF; bash would keep the CR in every value, here it is left out."
NOT_THERE = "# Not in that file: the launcher's own values, which its containers are told."
ALSO = (
    "Fabric addresses are not in that file: see fabric.plane0.pool and fabric.plane1.pool.",
    "Netplan files that address the fabric's ports now are refused until they are in fabric.setAside.",
    "The launcher's containers have to be gone before the first up.",
    "The first preview says what is missing on the nodes: ./pulumiw preview -s {stack}",
)


def import_env(file: Path, stack: str | None, home: Path, checkout: Path | None, root: Path = ROOT) -> int:
    """Write `Pulumi.<stack>.yaml` into the checkout and tell what is left; without a stack, both to the terminal.

    The exit status is 3 where the stack file needs correction before it can be used, 2 where there is none.
    """
    target = root / f"Pulumi.{stack}.yaml" if stack else None
    if target is not None and target.exists():
        print(f"{target.name} is there already, nothing was written; choose another name", file=sys.stderr)
        return USAGE
    try:
        text = file.read_bytes().decode("utf-8-sig")
        moved = move(text, str(home), str((checkout or file.parent).absolute()))
    except (OSError, UnicodeDecodeError, bash.BashError) as error:
        print(f"{file}: cannot be read: {error}", file=sys.stderr)
        return USAGE
    if target is None:
        print(stack_file(moved, file.name), end="")
    else:
        target.write_text(stack_file(moved, file.name))
    told = report(moved, file.name, stack or "STACK", written=target.name if target else None)
    print("\n".join(told), file=sys.stdout if target else sys.stderr)
    return TO_CORRECT if moved.problems else WRITTEN


def stack_file(moved: Moved, source: str) -> str:
    """The stack file, with comments where it is not plain from where a value is."""
    config = {f"{NAMESPACE}:{section}": values for section, values in moved.config.items()}
    lines = yaml.safe_dump({"config": config}, sort_keys=False, width=WIDTH, allow_unicode=True).splitlines()
    lines = list(_marked(lines, moved.told))
    head = [f"# From the launcher's {source}, by `python -m fleet import-env`. All keys and defaults: docs/config.md"]
    return "".join(f"{line}\n" for line in head + lines)


def _marked(lines: Iterable[str], told: Collection[str]) -> Iterator[str]:
    """The lines, with a comment where in a section those begin that the file does not have."""
    inside = False
    for line in lines:
        name = line.strip().partition(":")[0]
        one = line.startswith(" " * 6) and name in told
        if one and not inside:
            yield f"      {NOT_THERE}"
        inside = one or (inside and line.startswith(" " * 7))
        yield line


def report(moved: Moved, source: str, stack: str, *, written: str | None) -> list[str]:
    """What to know and to do, a line each."""
    engine, topology = moved.config["engine"], moved.config["fabric"]["topology"]
    count = sum(len(engine.get(key, ())) for key in ("serving", "env", "headEnv", "without"))
    profile = f"profile {engine.get('profile', 'auto')} and {count} variables"
    lines = [f"{source}: {len(moved.config['nodes'])} nodes, {topology}, {profile}"]
    if written:
        lines.append(f"Written: {written}")
    if moved.carriage_returns:
        lines.append(CARRIAGE_RETURNS)
    if moved.assumed:
        lines += ["", "Not in the file, taken from the launcher's defaults:"]
        lines += [f"  {name}={text}" for name, text in moved.assumed.items() if not is_secret(name, text)]
    if moved.secrets:
        lines += ["", "Secrets, which are not in the stack file. Set each, and type it when asked:"]
        for key, line in moved.secrets.items():
            lines.append(f"  ./pulumiw config set -s {stack} --secret --path '{NAMESPACE}:{key}'   ({_at(line)})")
    if moved.todo:
        lines += ["", "Not carried over, to be seen to:", *_grouped(moved.todo)]
    if moved.needless:
        lines += ["", "Not carried over, and not needed:", *_grouped(moved.needless)]
    if moved.problems:
        lines += ["", "To be corrected in the stack file:", *(f"  {one.text()}" for one in moved.problems)]
    return [*lines, "", "Also:", *(f"  {text.format(stack=stack)}" for text in ALSO)]


def _grouped(left: Iterable[Left]) -> Iterator[str]:
    """Each with line and value, those with one reason together."""
    reasons: dict[str, list[Left]] = {}
    for one in left:
        reasons.setdefault(one.why, []).append(one)
    for why, those in reasons.items():
        yield f"  {why}"
        yield from (f"    {_at(one.line)}: {one.name}{_value(one)}" for one in those)


def _value(one: Left) -> str:
    return f"={one.value}" if one.value else ""


def _at(line: int | None) -> str:
    return "default" if line is None else f"line {line}"
