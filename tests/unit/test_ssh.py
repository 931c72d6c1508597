"""Which key a node must show, and how it is reached."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet.loading import load
from fleet.on_node import Link
from fleet.problems import Problem
from fleet.ssh import known_keys, links
from tests.unit.stacks import changed, ring

ED25519, ECDSA, RSA, OTHER = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGm8jTWGuS9gN0aZ3Ek1v8vq2m0a1Rk7mEPgqk0OQ5pV",
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAAAB",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQ==",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGm8jTWGuS9gN0aZ3Ek1v8vq2m0a1Rk7mEPgqk0OQ6pV",
)


def reached(known_hosts: Path, lines: list[str], **changes: Any) -> tuple[dict[str, Link], list[Problem]]:
    known_hosts.write_text("".join(f"{line}\n" for line in lines))
    made, problems = links(load(changed(ring(), {"ssh.knownHosts": str(known_hosts), **changes})))
    return {link.name: link for link in made}, problems


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ([f"spark1 {ED25519}"], ED25519),
        ([f"192.168.1.11 {ED25519} a comment"], ED25519),
        ([f"x,spark1,y {ECDSA}"], ECDSA),
        ([f"192.168.1.11 {OTHER}", f"spark1 {ED25519}"], ED25519),  # the name counts for more than the address
        ([f"spark1 {RSA}", f"spark1 {ECDSA}", f"spark1 {ED25519}"], ED25519),
        ([f"spark1 {RSA}", f"spark1 {ECDSA}"], ECDSA),
        ([f"spark1 {RSA}"], RSA),
        ([f"@revoked spark1 {OTHER}", f"spark1 {ED25519}"], ED25519),
        ([f"[spark1]:2222 {OTHER}", f"spark1 {ED25519}"], ED25519),
    ],
)
def test_the_best_trusted_key_of_a_node_is_taken(lines: list[str], key: str, tmp_path: Path) -> None:
    found, _ = reached(tmp_path / "known_hosts", lines)
    assert found["spark1"].host_key == key


def test_a_hashed_entry_is_found(tmp_path: Path) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"spark1 {ED25519}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known_hosts)], check=True, capture_output=True)
    assert "spark1" not in known_hosts.read_text()
    assert known_keys(known_hosts, "spark1", 22) == {"ssh-ed25519": ED25519}


@pytest.mark.parametrize(
    "content",
    [
        f"   \n\t\n\nspark1 {ED25519}\n".encode(),
        f"  spark1 {ED25519}\n  #spark1 {ECDSA}\n# spark1 {RSA}\n".encode(),
        f"SPARK1,other {ED25519}\nSpark2 {ECDSA}\n".encode(),
        f"\tspark1\t{ED25519.replace(' ', chr(9))}\r\n".encode(),
        f"# M\xfcller\nspark1 {ED25519} Stra\xdfe\n".encode("latin-1"),
        f"other {ED25519} a\x0cspark1 {ECDSA}\n".encode(),
        f"sp*,!spark1 {ED25519}\nspark? {ECDSA}\n".encode(),
        f"sp*,!spark1 {ED25519}\n#* {RSA}\n".encode(),
        f"@cert-authority spark1 {ED25519}\nspark1 {ECDSA}\n".encode(),
        f"spark11 {ED25519}\nspark {ECDSA}\n[spark1]:2222 {RSA}\n".encode(),
        f"spark1 {ED25519}\nspark1 {RSA}".encode(),
        b"spark1\nspark1 ssh-rsa\n",
        b"",
    ],
)
def test_the_file_is_read_as_openssh_reads_it(content: bytes, tmp_path: Path) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_bytes(content)
    found = subprocess.run(["ssh-keygen", "-F", "spark1", "-f", str(known_hosts)], capture_output=True, check=False)
    lines = [line.split() for line in found.stdout.split(b"\n") if line and not line.startswith((b"#", b"@"))]
    assert known_keys(known_hosts, "spark1", 22) == {
        words[1].decode(): b" ".join(words[1:3]).decode() for words in lines
    }


def test_a_file_that_cannot_be_read_holds_no_key(tmp_path: Path) -> None:
    assert known_keys(tmp_path, "spark1", 22) == {}


def test_another_port_has_keys_of_its_own(tmp_path: Path) -> None:
    lines = [f"spark1 {OTHER}", f"[spark1]:2222 {ED25519}"]
    found, _ = reached(tmp_path / "known_hosts", lines, **{"nodes[0].ssh.port": 2222})
    assert (found["spark1"].port, found["spark1"].host_key) == (2222, ED25519)


def test_a_key_in_the_settings_counts_for_more_than_the_file(tmp_path: Path) -> None:
    found, _ = reached(tmp_path / "known_hosts", [f"spark1 {OTHER}"], **{"nodes[0].hostKey": f"{ED25519} root@spark1"})
    assert found["spark1"].host_key == ED25519


def test_every_node_without_a_trusted_key_is_a_problem_of_its_own(tmp_path: Path) -> None:
    found, problems = reached(tmp_path / "known_hosts", [f"spark3 {ED25519}"])
    assert list(found) == ["spark3"]
    assert [problem.path for problem in problems] == [f"spark-fabric:nodes[{index}].hostKey" for index in (0, 1, 3)]
    assert f"{tmp_path}/known_hosts has no key for spark1 or 192.168.1.11" in problems[0].text()
    assert "Compare the key at spark1's console" in problems[0].text()


def test_a_file_that_is_not_there_holds_no_key(tmp_path: Path) -> None:
    assert known_keys(tmp_path / "nothing", "spark1", 22) == {}


def test_no_key_is_needed_where_no_node_is_asked(tmp_path: Path) -> None:
    made, problems = links(load(changed(ring(), {"ssh.knownHosts": str(tmp_path / "nothing")})), keys_needed=False)
    assert [link.name for link in made] == ["spark1", "spark2", "spark3", "spark4"]
    assert problems == []


def test_a_node_may_have_ways_of_its_own(tmp_path: Path) -> None:
    lines = [f"{name} {ED25519}" for name in ("spark1", "[spark2]:2222")]
    changes = {
        "ssh.identity": "~/.ssh/all",
        "ssh.connectTimeout": 9,
        "nodes[1].ssh": {"user": "other", "port": 2222, "identity": "/keys/two"},
    }
    found, _ = reached(tmp_path / "known_hosts", lines, **changes)
    one, two = found["spark1"], found["spark2"]
    assert (one.user, one.port, one.identity, one.connect_s) == ("nvidia", 22, "~/.ssh/all", 9)
    assert (two.user, two.port, two.identity, two.connect_s) == ("other", 2222, "/keys/two", 9)
