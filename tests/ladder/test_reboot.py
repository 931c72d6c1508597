"""A node that loses its power while a stack is up, and boots again: nothing drifts, and nothing is lost at the end."""

from __future__ import annotations

from lab import api
from lab.snapshot import Snapshot

from .conftest import NewRig
from .rig import Rig

NODE = "spark2"


def cut_and_boot(lab: api.Handle) -> None:
    """Cut the node's power, boot it, and wait until it has started everything."""
    lab.kill(NODE)
    lab.boot(NODE)
    lab.run(NODE, "systemctl is-system-running --wait || :")


def own_profiles(snapshot: Snapshot) -> dict[str, str]:
    """UUID -> port of the profiles that NetworkManager made by itself."""
    profiles: dict[str, str] = snapshot["boot"]["profiles"]
    return profiles


def up_and_cut(rig: Rig) -> None:
    """Bring the stack up; the node loses its power, and gets nothing but its engine anew."""
    rig.up()
    cut_and_boot(rig.lab)
    engines = [f"{node['name']}-engine" for node in rig.config["nodes"]]
    assert {name: step.op for name, step in rig.preview().items()} == dict.fromkeys(
        ["stop", "gate", *engines, "halt", "health"], "replace"
    )


def test_a_power_cut_is_no_drift_and_leaves_no_trace(ring_lab: api.Handle, new_rig: NewRig) -> None:
    rig = new_rig(ring_lab, "reboot")
    before = ring_lab.snapshot(NODE)
    with rig.leaving_no_trace():
        up_and_cut(rig)
        rig.up()
        rig.assert_one_group()
        rig.unchanged()
        assert own_profiles(ring_lab.snapshot(NODE)) == {}
    # All ports are the stack's, so that not even numbers and addresses are others than before.
    after = ring_lab.snapshot(NODE)
    for part in ("profiles", "routes6"):
        assert after[part] == before[part]


def test_another_power_cut_in_the_midst_of_a_destroy_leaves_no_trace_either(
    switched_lab: api.Handle, new_rig: NewRig
) -> None:
    """Half of the ports are not the stack's here: at the boot they get the numbers of those that are."""
    rig = new_rig(switched_lab, "reboot-switched", "switched")
    rig.config = rig.base("switched", size=2)
    before = own_profiles(switched_lab.snapshot(NODE))
    with rig.leaving_no_trace():
        up_and_cut(rig)
        with switched_lab.stopped_at(NODE, "nmcli-connection-load") as point:
            destroy = rig.start("destroy", "--yes", "--skip-preview")
            point.wait()
            cut_and_boot(switched_lab)
        out, _ = destroy.communicate(timeout=120)
        assert destroy.returncode, out
        assert 0 < len(own_profiles(switched_lab.snapshot(NODE))) < len(before)
    assert sorted(own_profiles(switched_lab.snapshot(NODE)).values()) == sorted(before.values())
