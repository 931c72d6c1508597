"""The fake machine with the tools of a mesh: `tc` for flower, `devlink`, `ethtool -k`, `rdma`, systemd's markers.

What they print follows recorded output of a Spark and stock iproute2, in two dialects; see `node/tc.py`. A
re-initialisation takes from a port what it takes on a Spark: addresses, routes, qdiscs, rules, kernel values.
"""

import copy
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from node import meshunits
from node.limits import CALL
from node.meshup import up
from node.request import Failure, Request
from node.run import Result
from tests.node.helpers import OWNER
from tests.node.machine import FABRIC, Machine

BINARY = "/var/lib/operator/mlx5-rdma-tx-rewrite-probe"
BINARY_TEXT = "the operator's marker"
PORT_OF = {pci: netdev for netdev, (_, pci) in FABRIC.items()}
HCAS = [hca for hca, _ in FABRIC.values()]
PID = 4000  # of the first marker
RELOAD_S = 5.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"

Row = dict[str, Any]


class MeshMachine(Machine):
    """See the module. `dialect` is "6" or "5" (of iproute2) or "text" (its JSON cannot be read)."""

    def __init__(self) -> None:
        self.driver: dict[str, Row] = {}
        self.offload: dict[str, str] = {}
        self.steering, self.eswitch = "hmfs", "legacy"
        self.qdiscs: dict[str, str] = {}
        self.flows: dict[str, list[Row]] = {}
        self.egress: dict[str, list[Row]] = {}
        self.markers: dict[str, Row] = {}  # RDMA device -> how its unit is
        self.dialect = "6"
        self.not_in_hw: set[int] = set()  # preferences that the card does not take
        self.reload_fault: dict[str, str] = {}  # PCI address -> refused, broken, flagged, uncounted, lost, cable
        self.back: dict[str, float] = {}  # port -> when its driver has it again
        self.drift_next: set[str] = set()  # ports whose GID moves at the next re-initialisation
        self.drifted: set[str] = set()
        self.marker_fault: dict[str, str] = {}  # RDMA device -> dies, silent, or a line to print
        self.queue_pairs: list[Row] = []
        self.packets, self.sw_packets = 4, 0  # what every rule has counted
        self.statistics: dict[str, dict[str, int]] = {}  # port -> what its driver counts
        self.perftest: list[list[str]] = []  # how it was called
        self.tool: Callable[[list[str]], Result] = lambda _: Result(127)
        self.gpu: list[str] | None = None  # lines of nvidia-smi; None: not installed
        self.order: list[str] = []  # what happened to markers and rules
        self.installed: set[str] = set()
        super().__init__()
        self._driver_fresh()
        self._sysfs()
        for folder in ("/var/lib/operator/x", "/opt/x"):
            self.put(folder, "")
            self.drop(folder)
        self.put(BINARY, BINARY_TEXT, 0o755)

    def _driver_fresh(self) -> None:
        values = {"hairpin_num_queues": 4, "hairpin_queue_size": 1024}
        self.driver = {
            pci: {"shown": dict(values), "effective": dict(values), "reinits": 0, "failed": False} for pci in PORT_OF
        }
        self.offload = dict.fromkeys(FABRIC, "on")

    def boot(self) -> None:
        self._driver_fresh()
        self.qdiscs, self.flows, self.markers, self.drifted = {}, {}, {}, set()
        for path in [path for path in self.files if path.startswith("/run/dsv41-mesh")]:
            self.drop(path)
        self.put(BOOT_ID, f"boot-{self.ticks}")
        super().boot()

    def copy(self) -> "MeshMachine":
        twin = super().copy()
        assert isinstance(twin, MeshMachine)
        for name in ("driver", "flows", "egress", "markers"):
            setattr(twin, name, copy.deepcopy(getattr(self, name)))
        return twin

    def snapshot(self) -> dict[str, Any]:
        seen = {path: value for path, value in super().snapshot().items() if not path.startswith("/run/dsv41-mesh")}
        seen = {path: value for path, value in seen.items() if not path.startswith((BINARY, BOOT_ID))}
        values = {pci: (row["shown"], row["effective"], row["failed"]) for pci, row in self.driver.items()}
        seen["driver"], seen["offload"] = json.dumps(values), dict(self.offload)
        seen["tc"] = json.dumps([self.qdiscs, {k: v for k, v in self.flows.items() if v}], sort_keys=True)
        seen["markers"] = sorted(hca for hca, row in self.markers.items() if row["active"])
        return seen

    def run(self, argv: list[str], timeout: float = CALL) -> Result:
        if argv[0] == "nvidia-smi" and argv[0] not in self.hooks:
            return Result(127) if self.gpu is None else Result(0, "\n".join(self.gpu))
        return super().run(argv, timeout)

    # devlink and ethtool

    def _devlink(self, argv: list[str]) -> Result:
        words = [word for word in argv if not word.startswith("-")]
        if words[:2] == ["dev", "show"]:
            return Result(0, json.dumps({"dev": {f"pci/{pci}": self._stats(row) for pci, row in self.driver.items()}}))
        if words[:3] == ["dev", "param", "show"]:
            return Result(0, json.dumps({"param": {f"pci/{p}": self._params(row) for p, row in self.driver.items()}}))
        pci = next(word for word in words if word.startswith("pci/")).removeprefix("pci/")
        if words[:3] == ["dev", "eswitch", "show"]:
            modes = {"mode": self.eswitch, "inline-mode": "none", "encap-mode": "basic"}
            return Result(0, json.dumps({"dev": {f"pci/{pci}": modes}}))
        if words[:3] == ["dev", "param", "set"]:
            self.driver[pci]["shown"][words[5]] = int(words[7])
            return Result(0)
        assert words[:2] == ["dev", "reload"]
        return self._reinit(pci)

    def _stats(self, row: Row) -> Row:
        counts = {"driver_reinit": {"unspecified": row["reinits"]}, "fw_activate": {"unspecified": 0, "no_reset": 0}}
        remote = {"driver_reinit": {"unspecified": 7}, "fw_activate": {"unspecified": 0, "no_reset": 0}}
        return {"stats": {"reload": counts, "remote_reload": remote}} | (
            {"reload_failed": True} if row["failed"] else {}
        )

    def _params(self, row: Row) -> list[Row]:
        shown = [
            {
                "name": name,
                "type": "driver-specific",
                "values": [{"cmode": "driverinit", "value": self._spelled(value)}],
            }
            for name, value in row["shown"].items()
        ]
        modes = [{"cmode": "runtime", "value": self.steering}]
        other = {"name": "max_macs", "type": "generic", "values": [{"cmode": "driverinit", "value": 128}]}
        return [other, *shown, {"name": "flow_steering_mode", "type": "driver-specific", "values": modes}]

    def _spelled(self, value: int) -> Any:
        return str(value) if self.dialect == "5" else value

    def _reinit(self, pci: str) -> Result:
        fault, netdev, row = self.reload_fault.get(pci, ""), PORT_OF[pci], self.driver[pci]
        if fault == "refused":
            return Result(1, "", "kernel answers: Device or resource busy")
        self.order.append(f"reinit {netdev}")
        self.qdiscs.pop(netdev, None)
        self.flows.pop(netdev, None)
        hca = FABRIC[netdev][0]
        if self.markers.get(hca, {}).get("active"):
            self.markers[hca]["marking"] = False
        uuid = self.active.pop(netdev, None)
        self._down(netdev)
        for key in ("arp_ignore", "arp_announce"):
            self.put(f"/proc/sys/net/ipv4/conf/{netdev}/{key}", "0")
        self.time += RELOAD_S
        if fault == "broken":
            row["failed"] = True
            return Result(1, "", "kernel answers: Input/output error")
        row["failed"] = fault == "flagged"
        row["reinits"] += fault != "uncounted"
        row["effective"] = dict(row["shown"])
        self.offload[netdev] = "on"
        if netdev in self.drift_next:
            self.drift_next.discard(netdev)
            self.drifted.add(netdev)
        if fault == "cable":
            self.links[netdev]["carrier"] = False
        elif uuid and fault != "lost":
            self._local(netdev)
            self._up(uuid, netdev)
        return Result(0)

    def _ethtool(self, argv: list[str]) -> Result:
        netdev = argv[1]
        if argv[0] == "-K":
            self.offload[netdev] = argv[3]
            return Result(0)
        if argv[0] == "-S":
            counts = {"rx_packets": 9, **self.statistics.get(netdev, {}), "rx_out_of_buffer_phy": 5}
            return Result(0, "\n".join(["NIC statistics:", *(f"     {key}: {counts[key]}" for key in counts), ""]))
        lines = [f"Features for {netdev}:", "rx-checksumming: on", f"hw-tc-offload: {self.offload[netdev]}"]
        return Result(0, "\n".join([*lines, "esp-hw-offload: off [fixed]", ""]))

    # tc

    def _tc(self, argv: list[str]) -> Result:
        if "-b" in argv:
            return self._batch(Path(argv[-1]).read_text())
        words = [word for word in argv if not word.startswith("-")]
        netdev = words[words.index("dev") + 1] if "dev" in words else ""
        as_json = "-j" in argv
        if words[:2] == ["qdisc", "show"]:
            return self._qdisc_show(as_json)
        if words[:2] == ["filter", "show"]:
            table = self.flows if "ingress" in words else self.egress
            return self._filter_show(netdev, table.get(netdev, []), as_json)
        if words[:2] == ["qdisc", "add"]:
            if netdev in self.qdiscs:
                return Result(2, "", "RTNETLINK answers: File exists")
            self.qdiscs[netdev] = "clsact"
        elif words[:2] == ["qdisc", "del"]:
            del self.qdiscs[netdev]
            self.flows.pop(netdev, None)
        elif words[:2] == ["filter", "add"]:
            return self._filter_add(netdev, words)
        else:
            assert words[:2] == ["filter", "delete"]
            pref, handle = (int(words[words.index(key) + 1]) for key in ("pref", "handle"))
            kept = [row for row in self.flows.get(netdev, []) if (row["pref"], row["handle"]) != (pref, handle)]
            if len(kept) == len(self.flows.get(netdev, [])):
                return Result(2, "", "Error: Filter with specified handle not found.")
            self.flows[netdev] = kept
            self.order.append(f"rule {pref} gone")
        return Result(0)

    def _batch(self, text: str) -> Result:
        results = [self._tc(["-j", "-s", *line.split()]) for line in text.splitlines()]
        failed = next((result for result in results if not result.ok), None)
        return failed or Result(0, "\n".join(result.out for result in results))

    def _qdisc_show(self, as_json: bool) -> Result:
        rows: list[Row] = []
        for netdev in self.links:
            rows.append({"kind": "mq", "handle": "0:", "dev": netdev, "root": True, "options": {}})
            if netdev in self.qdiscs:
                kind = self.qdiscs[netdev]
                rows.append({"kind": kind, "handle": "ffff:", "dev": netdev, "parent": "ffff:fff1", "options": {}})
        if as_json:
            return Result(0, "[{" if self.dialect == "text" else json.dumps(rows))
        lines = [
            f"qdisc {r['kind']} {r['handle']} dev {r['dev']} {'root' if 'root' in r else 'parent ' + r['parent']} "
            for r in rows
        ]
        return Result(0, "\n".join(lines))

    def _filter_show(self, netdev: str, rows: list[Row], as_json: bool) -> Result:
        if netdev not in self.qdiscs:
            return Result(2, "", "Error: Cannot find specified qdisc on specified device.")
        if as_json and self.dialect != "text":
            heads = [{"protocol": "[34997]", "pref": row["pref"], "kind": row["kind"], "chain": 0} for row in rows]
            shown = [part for head, row in zip(heads, rows, strict=True) for part in (head, self._json(head, row))]
            return Result(0, json.dumps(shown))
        return Result(0, "[{" if as_json else "".join(map(_text, rows)))

    def _json(self, head: Row, row: Row) -> Row:
        """A filter: iproute2 6 with all that it may say, or 5 with what it must."""
        new = self.dialect == "6"
        keys = {"dst_mac": row["dst_mac"], "src_mac": row["src_mac"], "eth_type": "88b5"} if "dst_mac" in row else {}
        protocol = {"protocol": f"[{row['protocol']}]" if new else f"{row['protocol']:x}"}
        options: Row = {"handle": f"0x{row['handle']:x}" if new else row["handle"], "keys": keys}
        options |= {"skip_sw": True} if row["skip_sw"] else {}
        options |= {"in_hw": True, "in_hw_count": 1} if row["in_hw"] else {"not_in_hw": True}
        stats = (
            {"stats": {"packets": self.packets, "bytes": 400, "drops": 0, "sw_packets": self.sw_packets}} if new else {}
        )
        actions: list[Row] = []
        for order, (kind, value) in enumerate(row["actions"], 1):
            action: Row = {"order": order, "kind": kind, **stats}
            if kind == "pedit":
                action |= {"control_action": {"type": "pipe"}} if new or order == 1 else {}
                action["keys"] = [self._pedit(*key) for key in value]
            else:
                action |= {"mirred_action": "redirect", "direction": "egress", "to_dev": value}
                action["control_action"] = {"type": "stolen"}
            actions.append(action)
        return head | protocol | {"options": options | {"actions": actions}}

    def _pedit(self, offset: int, value: int, mask: int) -> Row:
        if self.dialect == "6":
            return {"htype": "eth", "offset": offset, "cmd": "set", "val": f"{value:x}", "mask": f"{mask:x}"}
        return {"htype": "eth", "offset": offset, "cmd": "set", "val": value, "mask": mask ^ 0xFFFFFFFF}

    def _filter_add(self, netdev: str, words: list[str]) -> Result:
        text = " ".join(words)
        found = re.fullmatch(
            r"filter add dev \S+ ingress protocol 0x88b5 pref (\d+) handle (\d+) flower skip_sw"
            r" src_mac (\S+) dst_mac (\S+) action pedit ex munge eth type set 0x0800 pipe"
            r" action pedit ex munge eth dst set (\S+) pipe"
            r" action mirred egress redirect dev (\S+)",
            text,
        )
        assert found, text
        if netdev not in self.qdiscs:
            return Result(2, "", "Error: Parent Qdisc doesn't exists.\nWe have an error talking to the kernel")
        pref, handle = int(found[1]), int(found[2])
        if any(row["pref"] == pref for row in self.flows.get(netdev, [])):
            return Result(2, "", "RTNETLINK answers: File exists\nWe have an error talking to the kernel")
        if self.offload[netdev] != "on":
            return Result(2, "", "Error: TC offload is disabled on net device.")
        self.order.append(f"rule {pref}")
        self.add_flow(netdev, pref, found[3], found[4], found[5], found[6], handle=handle)
        return Result(0)

    def add_flow(
        self, netdev: str, pref: int, src: str, dst: str, new: str, egress: str, handle: int = 0, protocol: int = 0x88B5
    ) -> None:
        """A filter as the mesh has them, put there by whomever."""
        mac = bytes.fromhex(new.replace(":", ""))
        first, last = int.from_bytes(mac[:4], "big"), int.from_bytes(mac[4:], "big") << 16
        row = {"kind": "flower", "pref": pref, "handle": handle or pref, "protocol": protocol, "skip_sw": True}
        row |= {"src_mac": src, "dst_mac": dst, "in_hw": pref not in self.not_in_hw}
        kinds = [("pedit", [(12, 0x08000000, 0xFFFF)]), ("pedit", [(0, first, 0), (4, last, 0xFFFF)])]
        row["actions"] = [*kinds, ("mirred", egress)]
        self.flows.setdefault(netdev, []).append(row)

    # ip, rdma

    def _ip(self, argv: list[str]) -> Result:
        words = [word for word in argv if word not in ("-j", "-4", "-6")]
        if words[:3] == ["route", "show", "exact"]:
            bare = words[3].removesuffix("/32")
            return Result(0, json.dumps([route for route in self.routes if route["dst"] in (bare, words[3])]))
        if words[0] == "route" and words[1] in ("add", "del"):
            return self._route(words)
        if words[:2] == ["address", "del"]:
            self.drifted.discard(words[4])
        return super()._ip(argv)

    def _route(self, words: list[str]) -> Result:
        values = dict(zip(words[3::2], words[4::2], strict=True))
        route = {"type": "unicast", "dst": words[2].removesuffix("/32"), "dev": values["dev"], "protocol": "boot"}
        route |= {"gateway": values["via"], "prefsrc": values["src"]}
        if words[1] == "del":
            if route not in self.routes:
                return Result(2, "", "RTNETLINK answers: No such process")
            self.routes.remove(route)
            return Result(0)
        if values["src"] not in [address.split("/")[0] for address in self.links[values["dev"]]["addresses"]]:
            return Result(2, "", "Error: Invalid prefsrc address.")
        if any(row["dst"] == route["dst"] for row in self.routes):
            return Result(2, "", "RTNETLINK answers: File exists")
        self.routes.append(route)
        return Result(0)

    def _ib_write_lat(self, argv: list[str]) -> Result:
        self.perftest.append(argv)
        return self.tool(argv)

    def _rdma(self, argv: list[str]) -> Result:  # noqa: ARG002
        return Result(0, json.dumps([{"ifindex": 0, "ifname": "rocep1s0f0", "comm": "ib_core"}, *self.queue_pairs]))

    def _sysfs(self) -> None:
        super()._sysfs()
        for netdev in self.drifted:
            port = f"/sys/class/infiniband/{FABRIC[netdev][0]}/ports/1"
            gid = self.text(f"{port}/gids/3") or ""
            if self.links[netdev]["addresses"] and gid.strip("0:"):
                self.put(f"{port}/gids/4", gid)
                self.put(f"{port}/gid_attrs/types/4", "RoCE v2")
                self.put(f"{port}/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000")

    # systemd

    def target(self, path: str) -> str:
        found = re.fullmatch(r"/proc/(\d+)/exe", path)
        hca = dict(enumerate(HCAS, PID)).get(int(found[1])) if found else None
        if hca is None:
            return super().target(path)
        now = self.files.get(meshunits.BINARY)
        return meshunits.BINARY + ("" if now and now.mtime == self.markers[hca]["file"] else " (deleted)")

    def open_to_read(self, path: str) -> BinaryIO | None:
        if self.target(path).startswith(meshunits.BINARY):
            return io.BytesIO(self.markers[HCAS[int(path.split("/")[2]) - PID]]["binary"].encode())
        return super().open_to_read(path)

    def _journalctl(self, argv: list[str]) -> Result:
        hca = argv[1].partition("@")[2].removesuffix(".service")
        return Result(0, self.marker_fault.get(hca, ""))

    def _systemctl(self, argv: list[str]) -> Result:
        unit = argv[-1]
        if argv[0] == "show":
            return Result(0, "\n\n".join(self._shown(name) for name in argv[2:]))
        if unit.startswith("dsv41-mesh-marker@"):
            return self._marker(argv[0], unit.partition("@")[2].removesuffix(".service"))
        if unit == meshunits.SERVICE:
            return self._service(argv)
        return super()._systemctl(argv)

    def _shown(self, name: str) -> str:
        hca = name.partition("@")[2].removesuffix(".service")
        row = self.markers.get(hca, {"active": False, "restarts": 0})
        path = f"/etc/systemd/system/{meshunits.MARKER if hca else name}"
        loaded = self.exists(path) or name in self.installed
        active = row["active"] if hca else bool(self.units.get(name))
        enabled = self.exists(f"/etc/systemd/system/multi-user.target.wants/{name}")
        fields = {
            "Id": name,
            "LoadState": "loaded" if loaded else "not-found",
            "ActiveState": row.get("state") or ("active" if active else "inactive"),
            "SubState": "running" if active else "dead",
            "UnitFileState": "enabled" if enabled else "",
            "Result": "success",
            "MainPID": str(PID + list(HCAS).index(hca)) if active and hca else "0",
            "NRestarts": str(row["restarts"] if hca else 0),
        }
        return "\n".join(f"{key}={value}" for key, value in fields.items())

    def _marker(self, verb: str, hca: str) -> Result:
        row = self.markers.setdefault(hca, {"active": False, "restarts": 0})
        if verb == "is-active":
            state = row.get("state") or ("active" if row["active"] else "inactive")
            return Result(0 if row["active"] else 3, state)
        if verb == "reset-failed":
            row.pop("state", None)
        if verb in ("stop", "restart") and row["active"]:
            self.order.append(f"marker {hca} gone")
            row["active"] = False
        if verb in ("start", "restart"):
            return self._attach(hca, row)
        return Result(0)

    def _attach(self, hca: str, row: Row) -> Result:
        if not self.exists(f"/etc/systemd/system/{meshunits.MARKER}") or not self.exists(meshunits.BINARY):
            return Result(5, "", f"Unit dsv41-mesh-marker@{hca}.service not found.")
        fault = self.marker_fault.get(hca, "")
        line = {"device": hca, "rdma_tx_matcher": True, "action": "ethertype_rewrite", "source_port": 65535}
        line |= {"replacement_port": 0, "attached": True, "requested_run_seconds": 0, "managed": True}
        if fault == "dies":
            row.update(active=False, state="failed", restarts=5)
            return Result(0)
        row.update(active=True, marking=True, binary=self.text(meshunits.BINARY))
        row["file"] = self.files[meshunits.BINARY].mtime
        self.order.append(f"marker {hca}")
        said = json.dumps(line | {"lifetime_seconds": None})
        self.put(meshunits.said(hca), "" if fault == "silent" else fault or said)
        return Result(0)

    def _service(self, argv: list[str]) -> Result:
        wants = f"/etc/systemd/system/multi-user.target.wants/{meshunits.SERVICE}"
        active = bool(self.units.get(meshunits.SERVICE))
        if argv[0] == "is-active":
            return Result(0 if active else 3, "active" if active else "inactive")
        if argv[0] == "is-enabled":
            return Result(0 if wants in self.symlinks else 1)
        if argv[0] == "enable":
            self.symlinks[wants] = f"/etc/systemd/system/{meshunits.SERVICE}"
        if argv[0] in ("start", "reload-or-restart") and not active:
            return self._start_service()
        if argv[0] in ("stop", "disable"):
            self.symlinks.pop(wants, None) if argv[0] == "disable" else None
            if argv[0] == "stop" or "--now" in argv:
                self.units.pop(meshunits.SERVICE, None)
                for hca in self.markers:
                    self._marker("stop", hca)
        return Result(0)

    def _start_service(self) -> Result:
        """The unit's program is a process of its own: what ends ours does not end it."""
        kill, steps, self.kill_at = self.kill_at, len(self.steps), None
        try:
            up(self, Request(OWNER, "spark1", "", {}, "the boot unit"))
        except Failure as failure:
            return Result(1, "", f"Job for {meshunits.SERVICE} failed: {failure}")
        finally:
            del self.steps[steps:]
            self.kill_at = kill
        self.units[meshunits.SERVICE] = True
        return Result(0)


def _text(row: Row) -> str:
    """The text form of a filter, as iproute2 6 prints it."""
    head = f"filter protocol [{row['protocol']}] pref {row['pref']} {row['kind']} chain 0 "
    lines = [head, f"{head}handle 0x{row['handle']:x} "]
    lines += [f"  dst_mac {row['dst_mac']}", f"  src_mac {row['src_mac']}", "  eth_type 88b5"]
    lines += ["  skip_sw", "  in_hw in_hw_count 1" if row["in_hw"] else "  not_in_hw"]
    for order, (kind, value) in enumerate(row["actions"], 1):
        if kind == "pedit":
            lines.append(f"\taction order {order}:  pedit action pipe keys {len(value)}")
            lines.append(" \tindex 1 ref 1 bind 1")
            for place, (offset, val, mask) in enumerate(value):
                lines.append(f"\t key #{place}  at eth{offset:+d}: val {val:08x} mask {mask:08x}")
        else:
            lines.append(f"\taction order {order}: mirred (Egress Redirect to device {value}) stolen")
            lines.append(" \tindex 1 ref 1 bind 1")
        lines += ["\tAction statistics:", "\tSent 400 bytes 4 pkt (dropped 0, overlimits 0 requeues 0) "]
        lines += ["\tSent software 0 bytes 0 pkt", "\tSent hardware 400 bytes 4 pkt", "\tbacklog 0b 0p requeues 0", ""]
    return "\n".join(lines) + "\n"
