"""What can go wrong on demand: the faults, and the values that they take."""

from __future__ import annotations

RELOADS = ("refused", "broken", "flagged", "uncounted", "double", "hang", "vanish")

# name: (what a scope can be; every fault without one is for all, what it does)
FAULTS: dict[str, tuple[str, str]] = {
    "not-in-hw": ("NETDEV or PREFERENCE", "new rules are accepted, but not offloaded"),
    "evicted": ("NETDEV or PREFERENCE", "rules are out of hardware as long as this is set"),
    "offload-fixed": ("NETDEV", "hw-tc-offload is off and cannot be turned on"),
    "switchdev": ("PCI ADDRESS", "the eswitch is in mode switchdev"),
    "reload": ("NETDEV or PCI ADDRESS", f"a re-init ends otherwise: {', '.join(RELOADS)}"),
    "gid4": ("NETDEV or RDMA DEVICE", "a GID that leaves index 3 comes back at 4, until its address is removed again"),
    "slow": ("NETDEV or RDMA DEVICE", "what the port can send, in Gb/s; no link and no counter tells"),
    "marker-refused": ("RDMA DEVICE", "a marker cannot attach"),
    "marker-dies": ("RDMA DEVICE", "a marker ends with an error; the value is its age then in seconds"),
}


def check(name: str, value: str) -> str:
    """What is wrong with a fault (`NAME` or `NAME.SCOPE`) and its value; empty if nothing is."""
    kind = name.partition(".")[0]
    if kind not in FAULTS:
        return f"no fault {kind!r}; there are {', '.join(FAULTS)}"
    if kind == "reload" and value not in RELOADS:
        return f"fault reload takes one of {', '.join(RELOADS)}"
    for one, unit in (("marker-dies", "seconds"), ("slow", "Gb/s")):
        if kind == one and not value.replace(".", "", 1).isdigit():
            return f"fault {one} takes a number of {unit}"
    return ""
