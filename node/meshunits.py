"""The mesh's files on a node: names that operators know from older set-ups, and what we write there. Pure.

    /opt/dsv41-mesh/mesh                                   runs this program's `mesh-up`
    /opt/dsv41-mesh/bin/mlx5-rdma-tx-rewrite-probe         the operator's marker binary
    /etc/systemd/system/dsv41-mesh.service                 queue size, rules, routes, then markers; at each boot
    /etc/systemd/system/dsv41-mesh-marker@.service         one marker; its instance is the RDMA device

Why a marker is started again when it dies (`Restart=on-failure`, 5 times in 5 minutes): while it is away, packets for
the opposite node leave unmarked and are lost. Two seconds of that are ridden out by RDMA's own retries or end the
engine, which its health check tells; a marker that stays away ends it for certain and keeps the next start from
working. Five deaths within five minutes are no accident any more: then it stays down, `failed`, and preview names it.
Every restart is counted by systemd and is in what `observe` reports.
"""

from typing import Any

from .files import MARK
from .tc import MARKED

HOME = "/opt/dsv41-mesh"
LAUNCHER = f"{HOME}/mesh"
BINARY = f"{HOME}/bin/mlx5-rdma-tx-rewrite-probe"
SERVICE = "dsv41-mesh.service"
MARKER = "dsv41-mesh-marker@.service"
UNITS = "/etc/systemd/system"
WHY = "/run/dsv41-mesh.json"  # how the last `mesh-up` ended, and why

Json = dict[str, Any]


def instance(hca: str) -> str:
    """The unit of one marker."""
    return MARKER.replace("@", f"@{hca}")


def said(hca: str) -> str:
    """Where the line that a marker writes when it is attached can be read."""
    return f"/run/dsv41-mesh-marker-{hca}.json"


def service_text() -> str:
    """The unit that brings the mesh up. Without `ExecStop`: its markers stop with it, rules go with their own stage."""
    return f"""# {MARK}.
[Unit]
Description=Hardware-forwarded mesh of the fabric
Wants=network-online.target
After=network-online.target NetworkManager-wait-online.service docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=300
ExecStart={LAUNCHER}

[Install]
WantedBy=multi-user.target
"""


def marker_text(source_port: int = 65535, ethertype: int = MARKED) -> str:
    """The unit of a marker. The line on its standard output goes where `said` says."""
    return f"""# {MARK}.
[Unit]
Description=Marker of the mesh on %i
PartOf={SERVICE}
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=simple
ExecStart={BINARY} --device %i --source-port {source_port} --replacement-ethertype {ethertype:#06x} --attach --managed
StandardOutput=truncate:{said("%i")}
Restart=on-failure
RestartSec=2
KillSignal=SIGTERM
"""


def launcher_text() -> str:
    """The program of the boot unit: the copy of the node program that lies beside the journal of the node's stack."""
    return f"""#!/usr/bin/python3 -IS
# {MARK}: brings the mesh up, as the journal of this node has it.
import json, os, sys

home = "/var/lib/spark-fabric"
try:
    with open(home + "/owner.json") as file:
        program = home + "/" + json.load(file)["stack"] + "/spark-node.pyz"
    os.execv(sys.executable, [sys.executable, "-IS", program, "mesh-up"])
except (OSError, ValueError, KeyError) as error:
    sys.exit(f"the mesh cannot be brought up: {{error}}. Run pulumi up, or remove {SERVICE}")
"""


def files(desired: Json) -> dict[str, tuple[str, int]]:
    """Path -> text and mode of every file of ours, without the binary."""
    marker = desired["markers"][0]
    return {
        LAUNCHER: (launcher_text(), 0o755),
        f"{UNITS}/{MARKER}": (marker_text(marker["source_port"], marker["ethertype"]), 0o644),
        f"{UNITS}/{SERVICE}": (service_text(), 0o644),
    }


PATHS = (LAUNCHER, f"{UNITS}/{MARKER}", f"{UNITS}/{SERVICE}")
# What an older installation by hand has beside them.
BY_HAND = (f"{HOME}/mesh-up.sh", f"{HOME}/mesh-down.sh", f"{HOME}/hairpin.sh")


def meaning(text: str) -> list[str]:
    """A unit or script without what means nothing: comments, blank lines, space at the ends."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and (line.startswith("#!") or not line.startswith(("#", ";")))]
