"""What can be damaged behind the program's back, how it is done, and what has to be said of it.

Data for `test_damage.py`. Damages of one table are done at once, on nodes and objects that do not touch each other.

Elsewhere: a rank that is stopped or gone, a container or an image of others, an image that one node lacks: test_group.
A library that is changed, has another mode, is gone, or is another on one node, GIDs that are gone: test_nccl. Nodes
that are installed anew or swapped: test_nodes. Cables of a fleet that was never up: test_cabling. All of a mesh:
mesh_damages.
"""

from __future__ import annotations

from dataclasses import dataclass

STACK = "damage"
CONTAINER = f"spark-fabric-{STACK}"

F0, F1, F0B, F1B = "enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"
PLANE0, PLANE1 = (f"/etc/netplan/41-spark-fabric-plane{plane}.yaml" for plane in (0, 1))
VALUES = "/etc/sysctl.d/60-spark-fabric-plane0.conf"
RELAY = "spark-fabric-relay.service"
UNIT = f"/etc/systemd/system/{RELAY}"
PROFILE = "of-the-operator"
STANZA = "/etc/netplan/90-NM-11111111-2222-3333-4444-555555555555-lan.yaml"
THEIRS, BROKEN = "/etc/netplan/60-theirs.yaml", "/etc/netplan/70-theirs.yaml"
OWNER = "/var/lib/spark-fabric/owner.json"
FULL = "/run/full"
SMALL = "mtu 1500"
PORT = "/sys/class/infiniband/roceP2p1s0f0/ports/1"
NO_GID = ":".join(["0000"] * 8)


WEIGHTS, SHARD = "/srv/weights", "model-00002-of-00002.safetensors"
BACK = f"cat kept >{SHARD} && touch -r kept {SHARD} && rm kept"  # in the same file, with its time
MODEL = "/models/DeepSeek-V4.1-Flash"


@dataclass(frozen=True)
class Told:
    """One line that has to be said: its code, the object on the node, and the begin of what was seen there."""

    code: str
    subject: str
    seen: str


@dataclass(frozen=True)
class Damage:
    """One kind of damage on one node.

    `harm` is done on the node as root, "" where it is done otherwise. `stage` is the one that repairs it, "" where no
    stage does; `told` is all that is said of the node, `also` what is said of others or of none. `undo` takes it away
    where no `up` does.
    """

    name: str
    node: str
    harm: str
    stage: str
    told: tuple[Told, ...]
    undo: str = ""
    also: tuple[tuple[str, Told], ...] = ()

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    @property
    def lines(self) -> list[tuple[str, Told]]:
        """Everything that is said, with the node of which it is said."""
        return [*((self.node, one) for one in self.told), *self.also]


@dataclass(frozen=True)
class Engine:
    """Damage of one rank's container: `reasons` are what is said of the whole group."""

    name: str
    node: str
    harm: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def rule(way_in: str, way_out: str) -> str:
    """What is said of an accept of forwarding that is missing."""
    return f"rule '-A DOCKER-USER -i {way_in} -o {way_out} -m comment --comment spark-fabric -j ACCEPT' is missing"


PAIRS = ((F0, F1), (F1, F0), (F0B, F1B), (F1B, F0B))
RULES = tuple(Told("relay.rule", one, rule(one, other)) for one, other in PAIRS)
STOPPED = Told("relay.active", RELAY, "is not active")

NETPLAN = f"""network:
  ethernets:
    NM-11111111-2222-3333-4444-555555555555:
      renderer: NetworkManager
      match: {{name: {F0}}}
      dhcp4: true
"""


def text(path: str, content: str) -> str:
    """A command that writes a file of netplan."""
    return f"install -m 600 /dev/null {path} && cat >{path} <<'END'\n{content}\nEND"


IN_PLACE = (
    Damage("netplan file deleted", "spark1", f"rm {PLANE1}", "plane1", (Told("file.missing", PLANE1, "is missing"),)),
    Damage(
        "one byte changed",  # and netplan cannot read it any more
        "spark1",
        f"sed -i '0,/ethernets:/s//ethernets;/' {PLANE0}",
        "plane0",
        (Told("file.edited", PLANE0, "was edited by somebody"),),
    ),
    Damage(
        "mode changed",
        "spark2",
        f"chmod 0644 {PLANE0}",
        "plane0",
        (Told("file.mode", PLANE0, "mode and owner are 0644 0:0"),),
    ),
    Damage(
        "file of kernel values deleted",
        "spark3",
        f"rm {VALUES}",
        "plane0",
        (Told("file.missing", VALUES, "is missing"),),
    ),
    Damage(
        "address added",
        "spark2",
        f"ip address add 10.66.0.1/24 dev {F0B}",
        "plane1",
        (Told("link.extra-address", F0B, "has 10.66.0.1/24 too"),),
    ),
    Damage(
        "route removed",
        "spark3",
        "ip route del 10.10.0.0/24",
        "plane0",
        (Told("route.missing", F1, "route to 10.10.0.0/24 is missing"),),
    ),
    Damage(
        "route changed",
        "spark4",
        f"ip route replace 10.20.0.0/24 via 10.20.3.99 dev {F0B}",
        "plane1",
        (Told("route.missing", F0B, f"route to 10.20.0.0/24 is via 10.20.3.99 {F0B}, via 10.20.3.11 {F0B}"),),
    ),
    Damage(
        "route added",
        "spark4",
        f"ip route add 198.51.100.0/24 via 10.20.2.10 dev {F1B} proto static",
        "plane1",
        (Told("route.extra", F1B, "has a route to 198.51.100.0/24 via 10.20.2.10"),),
    ),
    Damage(
        "ARP for the twin",
        "spark4",
        f"echo 0 >/proc/sys/net/ipv4/conf/{F1}/arp_ignore",
        "plane0",
        (Told("link.arp", F1, "arp_ignore is 0"),),
    ),
    Damage(
        "neighbour entry of the twin",
        "spark2",
        f"ping -q -c 1 -I {F1} 10.10.0.10 && ip neigh replace 10.20.0.10 dev {F1B} nud permanent "
        f"lladdr $(ip neigh show 10.10.0.10 dev {F1} | grep -o '[0-9a-f:]\\{{17\\}}')",
        "neighbours",
        (Told("link.neighbour", F1B, "10.20.0.10 is at "),),
    ),
    Damage(
        "profile that starts by itself",
        "spark3",
        f"nmcli connection add type ethernet ifname {F1B} con-name {PROFILE} autoconnect yes",
        "plane1",
        (Told("nm.rival", F1B, f"profile '{PROFILE}' starts on it by itself"),),
    ),
    Damage(
        "stanza of NetworkManager grown",
        "spark4",
        text(STANZA, NETPLAN),
        "plane0",
        (Told("netplan.stanza", STANZA, f"speaks for {F0}"),),
    ),
    Damage("forward accept removed", "spark1", "iptables -D DOCKER-USER 1", "relay", (RULES[3],)),
    Damage(
        "forwarding off",
        "spark2",
        "echo 0 >/proc/sys/net/ipv4/ip_forward",
        "relay",
        (Told("relay.forward", "net.ipv4.ip_forward", "is 0"),),
    ),
    Damage(
        "unit file changed",
        "spark2",
        f"sed -i s/Description=./Description=X/ {UNIT}",
        "relay",
        (Told("file.edited", UNIT, "was edited by somebody"),),
    ),
    Damage("unit stopped", "spark3", f"systemctl stop {RELAY}", "relay", (*RULES, STOPPED)),
    Damage(
        "unit disabled",
        "spark4",
        f"systemctl disable {RELAY}",
        "relay",
        (Told("relay.enabled", RELAY, "is not enabled"),),
    ),
)
"""Repaired under a running engine."""

WARNED = (
    Damage(
        "hostname changed",
        "spark2",
        "hostname other",
        "",
        (Told("hostname", "", 'calls itself "other"'),),
        undo="hostname spark2",
    ),
    Damage(
        "clock an hour ahead",  # of the node program: all nodes have the clock of the machine that simulates them
        "spark3",
        "cat >/usr/local/sbin/python3 <<'END'\n#!/bin/bash\n"
        'exec /usr/bin/python3 "$1" "$2" "import time;now=time.time;time.time=lambda:now()+3605;$3" "${@:4}"\n'
        "END\nchmod 755 /usr/local/sbin/python3",
        "",
        (Told("clock", "", "its clock is 360"),),
        undo="rm /usr/local/sbin/python3",
    ),
)
"""Told, and nothing follows."""

REFUSED = (
    Damage(
        "file of others for a port",
        "spark1",
        text(THEIRS, f"network: {{ethernets: {{{F1}: {{renderer: NetworkManager, dhcp4: true}}}}}}"),
        "",
        (Told("netplan.foreign", THEIRS, f"is not ours and configures {F1}"),),
        undo=f"rm {THEIRS}",
    ),
    Damage(
        "broken file of others",
        "spark2",
        text(BROKEN, "network: {ethernets: ["),
        "",
        (Told("netplan-broken", "/etc/netplan", "netplan refuses the result: "),),
        undo=f"rm {BROKEN}",
    ),
    Damage(
        "disk full",
        "spark3",
        f"mkdir {FULL} && mount -t tmpfs -o size=8m full {FULL} && cp -a /var/lib/spark-fabric/. {FULL} && "
        f"mount --bind {FULL} /var/lib/spark-fabric",
        "",
        (Told("disk-full", "/var/lib/spark-fabric", "has "),),
        undo=f"umount /var/lib/spark-fabric {FULL} && rmdir {FULL}",
    ),
    Damage(
        "image tag moved",
        "spark4",
        "docker tag spark-engine:sim spark-engine:kept && docker tag spark-engine:stock spark-engine:sim",
        "",
        (),
        undo="docker tag spark-engine:kept spark-engine:sim && docker rmi spark-engine:kept",
        also=(
            ("", Told("image-ids", "spark-fabric:engine.image", "spark-engine:sim is not the same image everywhere")),
        ),
    ),
    Damage(
        "GID at index 4",
        "spark4",
        f"cd {PORT} && cat gids/3 >gids/4 && cat gid_attrs/types/3 >gid_attrs/types/4 && "
        f"cat gid_attrs/ndevs/3 >gid_attrs/ndevs/4 && echo {NO_GID} | tee gids/2 gids/3",
        "",
        (Told("gid-not-common", "", ""),),
        undo=f"cd {PORT} && cat gids/4 | tee gids/2 gids/3 && echo {NO_GID} >gids/4",
    ),
    Damage(
        "docker down",
        "spark1",
        "systemctl stop docker.socket docker",
        "",
        (Told("docker", "", "docker does not answer"),),
        undo="systemctl start docker.socket docker",
    ),
    Damage(
        "weights shard emptied",
        "spark3",
        f"cd {WEIGHTS} && cp -p {SHARD} kept && : >{SHARD}",
        "",
        (Told("weights-empty", WEIGHTS, f"has empty files: {SHARD}"),),
        undo=f"cd {WEIGHTS} && {BACK}",
    ),
)
"""In the way of any change, until it is taken away."""

PORTS = f"({F0}, {F0B})", f"({F1}, {F1B})"
CABLES = (
    Damage(
        "two cables swapped",
        "spark1",
        "",
        "",
        (),
        also=(
            ("", Told("cable-wrong", "cable 0", "is not there: spark1 f0 leads to spark3 f0, spark2 f1 leads to ")),
            ("", Told("cable-wrong", "cable 2", "is not there: spark3 f0 leads to spark1 f0, spark4 f1 leads to ")),
        ),
    ),
    Damage(
        "cable pulled",
        "spark2",
        "",
        "",
        (Told("port-no-carrier", f"f0 {PORTS[0]}", "has no carrier"),),
        also=(("spark3", Told("port-no-carrier", f"f1 {PORTS[1]}", "has no carrier")),),
    ),
)
"""Done with the lab's own hands, beside what is refused."""

CLAIM = Damage(
    "claim of another stack",
    "spark2",
    f'cp -p {OWNER} /root/owner && sed -i \'s/"{STACK}"/"another"/\' {OWNER}',
    "",
    (Told("other-owner", "", "belongs to spark-fabric/another/tests"),),
    undo=f"mv /root/owner {OWNER}",
)
"""So much in the way that nothing else is asked of the nodes."""

DOWN = (
    Told("link.mtu", "{}", "MTU is 1500"),
    Told("link.address", "{}", "address is none (no carrier)"),
    Told("link.local", "{}", "link-local is none"),
    Told("nm.profile", "{}", "NetworkManager does not hold it"),
)


def down(netdev: str, route: str) -> tuple[Told, ...]:
    """What is said of a port that NetworkManager has given up for want of a carrier."""
    lost = (Told(one.code, netdev, one.seen) for one in DOWN)
    return (*lost, Told("route.missing", netdev, f"route to {route} is missing"))


DISRUPTIVE = (
    Damage(
        "address removed",
        "spark1",
        f"ip address del 10.10.0.10/24 dev {F0}",
        "plane0",
        (
            Told("link.address", F0, "address is none"),
            Told("route.missing", F0, "route to 10.10.1.0/24 is missing"),
        ),
    ),
    Damage(
        "MTU of one end",
        "spark2",
        f"ip link set {F0} {SMALL}",
        "plane0",
        (Told("link.mtu", F0, "MTU is 1500"),),
    ),
    Damage(
        "MTU of this end of a cable",
        "spark3",
        f"ip link set {F0B} {SMALL}",
        "plane1",
        (Told("link.mtu", F0B, "MTU is 1500"),),
    ),
    Damage(
        "MTU of that end of a cable",
        "spark4",
        f"ip link set {F1B} {SMALL}",
        "plane1",
        (Told("link.mtu", F1B, "MTU is 1500"),),
    ),
    Damage(
        "port down",
        "spark4",
        f"ip link set {F0} down",
        "plane0",
        down(F0, "10.10.0.0/24"),
        also=tuple(("spark1", one) for one in down(F1, "10.10.2.0/24")),
    ),
    Damage("relay that ended with docker", "spark1", "", "relay", (*RULES, STOPPED)),
)
"""Repaired while no engine runs. The last is what `REFUSED` leaves behind."""


def anew(arguments: str, labels: str = "cat") -> str:
    """A command that puts another container in the place of a rank's, with its name and labels."""
    format_ = "{{range $key, $value := .Config.Labels}}--label {{$key}}={{$value}} {{end}}"
    return (
        f"labels=$(docker inspect -f '{format_}' {CONTAINER} | {labels}) && docker rm -f {CONTAINER} && "
        f"docker run -d --name {CONTAINER} --network host --entrypoint sleep $labels {arguments} 3600"
    )


ENGINES = (
    Engine("rank that ended with docker", "spark1", "", (f"rank 0 (spark1): {CONTAINER} exited",)),
    Engine(
        "other env",
        "spark2",
        anew("-e NCCL_IB_DISABLE=1 spark-engine:sim"),
        (f"rank 1 (spark2): {CONTAINER} was made anew by somebody else",),
    ),
    Engine(
        "other image",
        "spark3",
        anew("spark-engine:stock"),
        (f"rank 2 (spark3): {CONTAINER} was made anew by somebody else of image ",),
    ),
    Engine(
        "other generation",
        "spark4",
        anew("spark-engine:sim", labels=r"sed 's/\(spark-fabric.group=\)\w*/\1other/'"),
        (f"rank 3 (spark4): {CONTAINER} was made anew by somebody else", "the ranks are of different groups"),
    ),
)

BEFOREHAND = (
    "docker create --name checkpoint spark-engine:sim && "
    f"docker cp checkpoint:{MODEL} {WEIGHTS} && docker rm checkpoint"
)
"""What gives every node weights of its own: those of the image."""

ROTTEN = Damage(
    "weights shard with other bytes",
    "spark2",
    f"cd {WEIGHTS} && cp -p {SHARD} kept && printf x | dd of={SHARD} bs=1 seek=9 conv=notrunc status=none",
    "",
    (Told("weights-digest", WEIGHTS, f"holds other files: {SHARD} is "),),
    undo=f"cd {WEIGHTS} && {BACK}",
)
"""Of the same size: only who reads it can tell."""

SHARED = "shared"  # a volume's name
NFS_OPTIONS = "ro,soft"
SERVES = "systemd-run --quiet --unit serves-2049 python3 -m http.server 2049"


def volume(server: str, options: str) -> str:
    """A command that makes a volume as `engine.weights.nfs` does. Nothing is mounted."""
    made = f"-d local -o type=nfs -o o=addr={server},{options} -o device=:/"
    return f"docker volume create {made} {SHARED}"


AFTERWARDS = (
    ("spark3", f"nmcli connection delete {PROFILE}"),
    ("spark4", f"rm {STANZA}.spark-fabric-saved"),
)
"""What gives back the nodes as they were, when the stack is gone: it has put back what others had there."""
