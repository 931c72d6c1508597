"""Checks of versions: system, kernel, driver, Docker, NIC firmware; across the nodes, and with what is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet import known
from fleet.look import Look, Observed
from fleet.problems import Problem

PARTS = ("System", "Kernel", "GPU driver", "Docker", "ConnectX-7 firmware")
"""As `known.toml` names them."""

PAGE = "docs/prerequisites.md has the versions that people reported."


def of(observed: Observed) -> dict[str, str]:
    """The versions of a node, as far as they can be read."""
    levels = observed.get("levels") or {}
    firmware = {hca.get("firmware") for hca in (observed.get("hcas") or {}).values()} - {None, ""}
    found = {
        "System": levels.get("system"),
        "Kernel": observed.get("kernel"),
        "GPU driver": levels.get("driver"),
        "Docker": (observed.get("docker") or {}).get("version"),
        "ConnectX-7 firmware": ", ".join(sorted(firmware)),
    }
    return {part: text for part, text in found.items() if text}


def differ(look: Look) -> Iterator[Problem]:
    """Parts of which not all nodes have the same version."""
    for part, versions in _by_part(look).items():
        if len(versions) > 1:
            seen = "; ".join(f"{version} on {', '.join(names)}" for version, names in versions.items())
            yield Problem(
                "level-differs", part, f"is {seen}", "one version everywhere", "Update the nodes that lag behind."
            )


def unknown(look: Look) -> Iterator[Problem]:
    """Versions that nobody has reported a ring at work with: one note for all of them."""
    reported = {level.what: level.levels for level in known.LEVELS}
    strange = [
        f"{part} {version}"
        for part, versions in _by_part(look).items()
        for version in versions
        if version not in reported[part]
    ]
    if strange:
        seen = f"{', '.join(strange)}: nobody has reported a ring at work with {'it' if len(strange) == 1 else 'them'}"
        yield Problem("level-unknown", "versions", seen, "reported ones", PAGE)


def bad(look: Look) -> Iterator[Problem]:
    """Versions that are known to fail, and kernels that show how."""
    for name, observed in look.nodes:
        options = observed.get("boot_options") or ""
        faults = [(part, version, known.fault(part, version, options)) for part, version in of(observed).items()]
        found = [(part, version, fault) for part, version, fault in faults if fault]
        for part, version, fault in found:
            yield Problem("level-bad", f"{name} {part}", f"is {version}. {fault.why}", "another version", fault.cure)
        memory = observed.get("memory") or {}
        free, total = memory.get("cma_free"), memory.get("cma_total")
        if not found and free is not None and total is not None and free > total:
            seen = f"counts {free >> 10} kB of CMA memory as free, of {total >> 10} kB: RDMA can register none"
            yield Problem("level-bad", f"{name} Kernel", seen, "another kernel", "Put kho=off on its command line.")


def _by_part(look: Look) -> Mapping[str, Mapping[str, list[str]]]:
    """Part -> version -> nodes."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, observed in look.nodes:
        for part, version in of(observed).items():
            found.setdefault(part, {}).setdefault(version, []).append(name)
    return {part: found[part] for part in PARTS if part in found}
