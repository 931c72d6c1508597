"""The communicator: devices, handles, rings, trees, and the lines that tell of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import evidence, fabric, routing, wire
from .collective import Channel, WrongSum, all_reduce
from .fabric import Device
from .library import Library
from .log import EngineLog, NcclLog
from .rendezvous import Group, PeerLost
from .settings import Settings


class NcclError(Exception):
    """What reaches the engine as `RuntimeError: NCCL error: …`."""


class Communicator:
    """All ranks' connections for collectives."""

    def __init__(self, settings: Settings, library: Library, group: Group, log: EngineLog) -> None:
        self.settings, self.library, self.group, self.say = settings, library, group, log
        self.env: Mapping[str, str] = settings.env
        self.nccl = NcclLog(self.env)
        self.limit = settings.number("ENGINE_CONNECT_S", 20)
        self.channels: list[Channel] = []
        self.sent: dict[str, int] = {}
        self.listener = wire.Listener()
        self.devices: list[Device] = []
        self.sockets = False
        self.policy = routing.Policy(
            subnet_aware=settings.flag("NCCL_IB_SUBNET_AWARE_ROUTING"),
            prefix=int(settings.number("NCCL_IB_SUBNET_PREFIX_LEN", 24)),
            extended=library.extended_gids and settings.flag("NCCL_IB_EXTENDED_IPV4_GIDS"),
            preserve_domain=library.preserve_domain and settings.flag("NCCL_IB_PRESERVE_PCI_DOMAIN"),
        )

    def _fail(self, text: str, kind: str = "unhandled system error") -> NcclError:
        self.nccl.warn(text)
        return NcclError(f"RuntimeError: NCCL error: {kind}")

    def start(self) -> None:
        """From nothing to connected."""
        self.nccl.version(f"NCCL version {self.library.release}+cuda{self.library.cuda}")
        for line in evidence.environment(self.env, self.library):
            self.nccl.info("ENV", line)
        bootstrap = fabric.socket_interface(self.env.get("NCCL_SOCKET_IFNAME", ""))
        if not bootstrap:
            raise self._fail("Bootstrap : no socket interface found")
        self.nccl.info("BOOTSTRAP", f"Bootstrap: Using {bootstrap[0]}:{bootstrap[1]}<0>")
        self._find_devices(bootstrap)
        if self.group.size == 1:
            return
        try:
            self._connect()
        except PeerLost as error:
            raise self._fail(f"Bootstrap: {error}") from None
        finally:
            self.listener.close()

    def _find_devices(self, bootstrap: tuple[str, str]) -> None:
        """RoCE devices where there are any; else plain sockets, unless NCCL_NET forbids them."""
        wanted = self.env.get("NCCL_NET", "")
        verbs = Path(self.env.get("ENGINE_DEV_INFINIBAND", "/dev/infiniband"))
        usable = verbs.is_dir() and any(verbs.glob("uverbs*"))
        if usable and not self.settings.flag("NCCL_IB_DISABLE") and wanted in ("", "IB"):
            self.devices = fabric.devices(
                Path(self.env.get("ENGINE_SYSFS", "/sys/class/infiniband")),
                self.env.get("NCCL_IB_HCA", ""),
                self.env.get("NCCL_IB_GID_INDEX"),
            )
        if self.devices:
            listing = " ".join(f"[{d.index}]{d.name}:{d.port}/RoCE" for d in self.devices)
            oob = f"{bootstrap[0]}:{bootstrap[1]}<0>"
            self.nccl.info("INIT", f"NET/IB : Using {listing} [RO]; OOB {oob}")
            for device in self.devices:
                if device.ipv4 is None:
                    self.say(
                        f"sim: {device.name} GID {device.gid_index} is "
                        f"{device.gid or 'zero'} ({device.gid_type or 'no type'}): never matched"
                    )
            self.nccl.info("INIT", "Using network IB")
            return
        self.nccl.info("INIT", "NET/IB : No device found.")
        if wanted == "IB":
            raise self._fail("Failed to initialize NET plugin IB: no RoCE device is usable")
        name, address = bootstrap
        self.nccl.info("INIT", f"NET/Socket : Using [0]{name}:{address}<0>")
        self.nccl.info("INIT", "Using network Socket")
        self.sockets = True
        mapped = f"::ffff:{address}"
        self.devices = [Device(0, name, 1, 0, name, 0, mapped, "RoCE v2")]

    def _connect(self) -> None:
        rank, size = self.group.rank, self.group.size
        fit = [device for device in self.devices if device.ipv4]
        try:
            for device in fit:
                assert device.ipv4
                self.listener.open(device.ipv4, device.netdev, fabric=not self.sockets)
        except wire.WireError as error:
            raise self._fail(f"NET/IB : {error}") from None
        policy = self.policy
        if self.sockets:
            policy = routing.Policy(False, 0, False, False)
        advert = routing.advertise(self.devices, policy)
        if self.library.extended_gids and not self.sockets:
            self.nccl.info("NET", evidence.listener(advert))
        mine = {
            "addresses": [device.ipv4 for device in self.devices],
            "names": [device.name for device in self.devices],
            "advert": [advert.format, list(advert.addresses), advert.observed],
            "ports": self.listener.ports,
            "trees": not self._skips_trees(),
            "library": self.library.sha256,
            "version": self.library.code,
        }
        peers = self.group.exchange("nccl", mine, self.limit * 3)
        self._compare(peers)
        count = routing.channels(
            min(len(peer["addresses"]) for peer in peers),
            int(self.settings.number("NCCL_MIN_NCHANNELS", 1)),
            int(self.settings.number("NCCL_MAX_NCHANNELS", 32)),
        )
        order = " ".join(str(k) for k in range(size))
        for number in range(count):
            self.nccl.info("INIT", f"Channel {number:02d}/{count:02d} : {order}")
        self.nccl.info("INIT", routing.tree_line(rank, size))

        after, before = (rank + 1) % size, (rank - 1) % size
        outgoing = [self._dial("ring", number, after, peers[after], policy) for number in range(count)]
        for number, (sock, name) in enumerate(outgoing):
            hello = f"ring {before} {number}"
            try:
                source = self.listener.wait(hello, self.limit)
            except wire.WireError as error:
                raise self._fail(f"NET/IB : rank {before} does not connect: {error}") from None
            self.channels.append(Channel(number, sock, source, name, self._holder(source)))
        for stray in self.listener.strays:
            self.say(f"sim: WARNING: {stray} (ARP of a twin function); RoCE may lose it")
        if self.listener.strays and self.settings.flag("ENGINE_STRICT_PORT"):
            raise self._fail("NET/IB: Got completion with status=12 IBV_WC_RETRY_EXC_ERR")
        self.group.exchange("rings", True, self.limit * 3)
        self.nccl.info("INIT", "Connected all rings, use ring PXN 0 GDR 0")
        self._diagnose()
        self._trees(peers, policy)
        self.group.exchange("trees", True, self.limit * 3)
        self.nccl.info("INIT", "Init COMPLETE")

    def _compare(self, peers: list[dict[str, Any]]) -> None:
        """NCCL compares versions and nothing else: another build shows in what it does."""
        told = evidence.differing([peer["library"] for peer in peers])
        if told:
            self.say(f"sim: {told}")
        own = self.library.code
        for number, peer in enumerate(peers):
            if peer["version"] != own:
                raise self._fail(
                    f"Mismatched NCCL version detected : rank {number} version {peer['version']} "
                    f"rank {self.group.rank} version {own}",
                    "invalid usage",
                )

    def _skips_trees(self) -> bool:
        ring_only = self.library.ring_only and self.settings.flag("NCCL_SWITCHLESS_RING_ONLY")
        return ring_only or (self.library.skip_tree and "NCCL_SKIP_TREE_CONNECT" in self.env)

    def _dial(
        self, kind: str, number: int, peer: int, theirs: dict[str, Any], policy: routing.Policy
    ) -> tuple[socket.socket, str]:
        """Connect one channel to another rank, by the device that the rules choose."""
        nominal = number % len(self.devices)
        form, addresses, observed = theirs["advert"]
        route = routing.choose(
            nominal,
            self.devices,
            theirs["addresses"][number % len(theirs["addresses"])],
            routing.Advert(form, tuple(addresses), observed),
            policy,
        )
        if route is None:
            why = f"{self.devices[nominal].name} has no IPv4 GID" if addresses else "it published no GID"
            raise self._fail(f"NET/IB : channel {number} to rank {peer}: {why}")
        device, address = route.device, route.device.ipv4
        assert address
        if route.overridden:
            self.nccl.info("NET", evidence.overriding(route, policy))
        try:
            sock = wire.connect(
                (device.netdev, address),
                (route.remote, theirs["ports"].get(route.remote, 1)),
                f"{kind} {self.group.rank} {number}",
                self.limit,
                fabric=not self.sockets,
            )
        except wire.WireError as error:
            if self.sockets:
                raise self._fail(f"NET/Socket : connect to {route.remote} (rank {peer}): {error}") from None
            raise self._fail(
                f"Call to ibv_modify_qp failed with 110 Connection timed out, on dev "
                f"{device.name}:{device.port}, local GID ::ffff:{address}, remote GID "
                f"::ffff:{route.remote} (rank {peer}): {error}"
            ) from None
        return sock, device.name

    def _holder(self, sock: socket.socket) -> str:
        """Name of the device whose address a connection came to."""
        address = sock.getsockname()[0]
        return next((d.name for d in self.devices if d.ipv4 == address), address)

    def _diagnose(self) -> None:
        """One record for each end of a connection, if asked for."""
        if self.sockets or not self.library.diagnostics or not self.settings.flag("NCCL_IB_ROUTE_DIAGNOSTICS"):
            return
        for channel in self.channels:
            for side, sock, name in (
                ("send", channel.out, channel.send_device),
                ("recv", channel.source, channel.receive_device),
            ):
                for device in self.devices:
                    if device.name == name:
                        self.nccl.info("NET", evidence.final(side, channel.number, sock, device))

    def _trees(self, peers: list[dict[str, Any]], policy: routing.Policy) -> None:
        """Stock NCCL connects trees too: a path is needed between ranks that no cable joins."""
        if self.library.ring_only and self.settings.flag("NCCL_SWITCHLESS_RING_ONLY"):
            for what in ("Tree", "PAT"):
                self.nccl.info("INIT", f"{what} transport setup disabled by NCCL_SWITCHLESS_RING_ONLY")
            return
        if self._skips_trees():
            self.nccl.info("INIT", "SWITCHLESS: skipping ncclTransportTreeConnect/PatConnect")
            return
        rank = self.group.rank
        try:
            for child, parent in routing.tree(self.group.size):
                if child == rank:
                    if not peers[parent]["trees"]:
                        raise self._fail(f"NET/IB : rank {parent} takes no tree connection")
                    self._dial("tree", 0, parent, peers[parent], policy)
                elif parent == rank:
                    self.listener.wait(f"tree {child} 0", self.limit)
        except (NcclError, wire.WireError) as error:
            self.nccl.warn(f"ncclTransportTreeConnect failed: {error}")
            raise NcclError("RuntimeError: NCCL error: unhandled system error (ncclTransportTreeConnect)") from None
        self.nccl.info("INIT", "Connected all trees")

    def _count(self, device: str, sent: int) -> None:
        self.sent[device] = self.sent.get(device, 0) + sent

    def all_reduce(self, size: int, step: int, limit: float, bad_device: str = "") -> int:
        """One all-reduce of about that many bytes."""
        if self.group.size == 1:
            return size
        return all_reduce(
            self.channels, self.group.rank, self.group.size, size, step, limit, bad_device,
            self._count,
        )  # fmt: skip

    def qualify(self, bad_device: str) -> None:
        """The first collectives, at full size; sums are checked."""
        if self.group.size > 1 and self._skips_trees() and not routing.allows(self.env.get("NCCL_ALGO", ""), "Ring"):
            raise self._fail(
                "Error : no algorithm/protocol available for function AllReduce with datatype ncclInt32. "
                f"NCCL_ALGO was set to {self.env['NCCL_ALGO']}.",
                "invalid usage",
            )
        size = int(self.settings.number("ENGINE_ALLREDUCE_BYTES", 1 << 20))
        repetitions = int(self.settings.number("ENGINE_ALLREDUCE_REPS", 2))
        began = time.monotonic()
        summed = 0
        try:
            for step in range(repetitions):
                summed += self.all_reduce(size, step, self.limit, bad_device)
        except WrongSum as error:
            raise NcclError(f"AssertionError: all-reduce: wrong sum on {error}") from None
        except wire.WireError as error:
            raise self._fail(f"NET/IB: Got completion with status=12 IBV_WC_RETRY_EXC_ERR: {error}") from None
        took = (time.monotonic() - began) * 1000
        shares = ", ".join(f"{name} {self.sent[name]}" for name in sorted(self.sent))
        self.say(
            f"sim: all-reduce: {repetitions} x {size} bytes over {len(self.channels)} channels, "
            f"sums right, {took:.0f} ms; sent by device: {shares or 'none'}"
        )
