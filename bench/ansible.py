"""Ansible beside ours: a playbook with the same files and values as a stack's stages, run with `--check` or applied.

It is written in Ansible's own way, with what ansible-core brings: a module where there is one, else a command that only
looks, and a condition. It is installed into a virtual environment of the bench's own and goes with it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node import plane, relay
from tests.ladder.rig import Rig

VERSION = "2.19.14"  # of ansible-core
CLEAN = re.compile(r"changed=0 +unreachable=0 +failed=0")

NOT_COVERED = f"""\
The playbook (ansible-core {VERSION}, `bench/ansible.py`) has the netplan files, sysctl files and values, addresses,
MTU, routes, unit, firewall rules, NCCL library and running container of all four nodes: what its modules can compare,
over one ssh connection for each node and run, with pipelining. It has nothing of what a preview of ours looks at beside
that: GIDs and RDMA devices, NetworkManager's profiles and the netplan files of others, neighbours, cabling, owners and
journals, the engines as one group, and all checks of the machines. Its apply tries nothing in a staging root, keeps no
journal, has no guard of the management address, and reads nothing back.
"""

Json = dict[str, Any]


class Ansible:
    """A playbook for the nodes of a running stack, with the desired states that are in its state."""

    def __init__(self, rig: Rig, scratch: Path, desired: Mapping[str, Mapping[str, Json]]) -> None:
        self.folder = scratch / "ansible"
        self._install()
        group = next(iter(rig.engines().values()))["spark-fabric.group"]
        hosts = {
            name: {
                **_host({stage: states[name] for stage, states in desired.items()}),
                "library": str(rig.config["nccl"]["library"]),
                "container": f"spark-fabric-{rig.stack}",
                "group": group,
            }
            for name in rig.lab.names
        }
        common = {
            "ansible_user": "spark",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_common_args": f"-F {rig.lab.lab.directory / 'ssh_config'}",
        }
        inventory = {"all": {"hosts": hosts, "vars": common}}
        (self.folder / "inventory.yaml").write_text(json.dumps(inventory))
        (self.folder / "fleet.yaml").write_text(json.dumps([PLAY], indent=1))
        self.forks = len(hosts)

    def _install(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
        pip = [str(self.folder / "venv" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"ansible-core=={VERSION}"], check=True)

    def check(self) -> None:
        """Look for differences on nodes that have none. Raises AssertionError where one is found."""
        said = self._play("--check", "--diff")
        assert len(CLEAN.findall(said)) == self.forks, said

    def address(self) -> None:
        """Apply both planes of all nodes, and nothing else."""
        said = self._play("--tags", "addressing")
        assert not CLEAN.search(said), said

    def _play(self, *words: str) -> str:
        program = self.folder / "venv" / "bin" / "ansible-playbook"
        done = subprocess.run(
            [program, "--inventory", "inventory.yaml", "--forks", str(self.forks), *words, "fleet.yaml"],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "LC_ALL": "C.UTF-8",
                "ANSIBLE_PIPELINING": "1",
                # As by default, but not from one run to the next: a run of ours logs in too.
                "ANSIBLE_SSH_ARGS": "-C -o ControlMaster=auto -o ControlPersist=3s",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stdout[-4000:])
        return done.stdout


def _host(stages: Mapping[str, Json]) -> Json:
    """What the playbook has to know of one node."""
    planes = [stages["plane0"], stages["plane1"]]
    ports = [port for one in planes for port in one["ports"]]
    arp = [(f"net.ipv4.conf.{port['netdev']}.{key}", value) for port in ports for key, value in plane.ARP.items()]
    forward = relay.FORWARD.replace("/", ".")
    return {
        "addressing": [
            *({"path": one["file"], "text": one["text"], "mode": "0600"} for one in planes),
            *({"path": plane.sysctl_path(one), "text": plane.sysctl_text(one), "mode": "0644"} for one in planes),
        ],
        "ports": [
            {"netdev": port["netdev"], "mtu": port["mtu"], "address": port["address"].partition("/")[0]}
            for port in ports
        ],
        "routes": [route for port in ports for route in port["routes"]],
        "looked_at": [*(key for key, _ in arp), forward],
        "values": [f"{key} = {value}" for key, value in arp],
        "forward": f"{forward} = 1",
        "unit": {"name": relay.UNIT, "path": relay.UNIT_PATH, "text": relay.unit_text(stages["relay"])},
        "rules": [{"in": rule[1], "out": rule[3]} for rule in relay.rules(stages["relay"])],
        "comment": relay.COMMENT,
        "library_path": stages["nccl"]["path"],
    }


def _look(name: str, command: str, kept: str, **more: Any) -> Json:
    """A command that only looks, with `--check` too."""
    task = {"name": name, "ansible.builtin.command": command, "register": kept, "changed_when": False}
    return {**task, "check_mode": False, **more}


def _put(name: str, path: str, mode: str, **more: Any) -> Json:
    return {"name": name, "ansible.builtin.copy": {"dest": path, "mode": mode, "owner": "root", **more}}


_LINK = "ansible_facts[item.netdev]"
PLAY: Json = {
    "hosts": "all",
    "become": True,
    "gather_facts": False,
    "tasks": [
        {
            **_put("files of the planes", "{{ item.path }}", "{{ item.mode }}", content="{{ item.text }}"),
            "loop": "{{ addressing }}",
            "register": "written",
            "tags": "addressing",
        },
        {
            "name": "netplan",
            "ansible.builtin.command": "netplan apply",
            "when": "written is changed",
            "tags": "addressing",
        },
        _look("values", "sysctl {{ looked_at | join(' ') }}", "seen", tags="addressing"),
        {
            "name": "values in effect",
            "ansible.builtin.command": "sysctl -p {{ addressing[2].path }} {{ addressing[3].path }}",
            "when": "values | difference(seen.stdout_lines) | length > 0",
            "tags": "addressing",
        },
        {"name": "links", "ansible.builtin.setup": {"gather_subset": ["!all", "!min", "network"]}},
        {
            "name": "links as planned",
            "ansible.builtin.command": "netplan apply",
            "loop": "{{ ports }}",
            "when": f"{_LINK}.mtu != item.mtu or {_LINK}['ipv4']['address'] | default('') != item.address",
        },
        _look("routes", "ip -j -4 route show", "table"),
        {
            "name": "routes as planned",
            "ansible.builtin.command": "netplan apply",
            "loop": "{{ routes }}",
            "when": """('"dst":"' ~ item.to ~ '","gateway":"' ~ item.via ~ '"') not in table.stdout""",
        },
        {**_put("unit", "{{ unit.path }}", "0644", content="{{ unit.text }}"), "register": "unit_file"},
        {
            "name": "unit in effect",
            "ansible.builtin.systemd_service": {
                "name": "{{ unit.name }}",
                "enabled": True,
                "state": "started",
                "daemon_reload": "{{ unit_file is changed }}",
            },
        },
        {
            "name": "forwarding",
            "ansible.builtin.command": "sysctl -w {{ forward | replace(' ', '') }}",
            "when": "forward not in seen.stdout_lines",
        },
        {
            "name": "rules",
            "ansible.builtin.iptables": {
                "chain": "DOCKER-USER",
                "action": "insert",
                "in_interface": "{{ item.in }}",
                "out_interface": "{{ item.out }}",
                "comment": "{{ comment }}",
                "jump": "ACCEPT",
            },
            "loop": "{{ rules }}",
        },
        _put("library", "{{ library_path }}", "0644", src="{{ library }}"),
        _look(
            "engine",
            "docker ps -q --filter name={{ container }} --filter status=running"
            " --filter label=spark-fabric.group={{ group }}",
            "engine",
        ),
        {
            "name": "engine runs",
            "ansible.builtin.command": "docker start {{ container }}",
            "when": "engine.stdout == ''",
        },
    ],
}
