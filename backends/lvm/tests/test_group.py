"""The tests' own LVM: it sees their disks only, and leftovers are detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from csi_multi.host import loopdev

from . import ondisk
from .group import MIB, Group, Lvm, NewGroup, nothing_stays

pytestmark = pytest.mark.devicemapper


def test_lvm_sees_the_groups_of_the_tests_and_no_other(lvm: Lvm, group: Group, new_group: NewGroup) -> None:
    other = new_group(disks=2, size=64 * MIB)

    assert sorted(lvm.groups()) == sorted([group.name, other.name])
    assert sorted(lvm.run("pvs", "--noheadings", "-o", "pv_name")) == sorted(map(str, [*group.disks, *other.disks]))


def test_a_disk_that_no_group_was_given_is_not_seen(lvm: Lvm, tmp_path: Path) -> None:
    file = tmp_path / "disk"
    file.write_bytes(bytes(16 * MIB))
    device = loopdev.attach(lvm.host, file)
    try:
        result = lvm.host.run("pvcreate", str(device), ok=(0, 5))
    finally:
        loopdev.detach(lvm.host, device)

    assert result.status == 5
    assert "filter" in result.stderr


def test_a_volume_that_is_left_in_a_group_is_found(lvm: Lvm, new_group: NewGroup) -> None:
    group = new_group(disks=1, size=64 * MIB)
    with pytest.raises(AssertionError, match="forgotten"), nothing_stays(lvm):
        lvm.run("lvcreate", "-qq", "-l", "1", "-n", "forgotten", "-Wn", group.name)

    assert group.left() == ["forgotten"]
    lvm.run("lvremove", "-qq", "-y", f"{group.name}/forgotten")
    assert group.left() == []


def test_what_is_read_from_the_disk_is_what_lvm_reports(lvm: Lvm, new_group: NewGroup) -> None:
    """Also when the text wraps around the end of the metadata area."""
    group = new_group(disks=1, size=128 * MIB, pool=32 * MIB)
    tags = [word for number in range(90) for word in ("--addtag", f"t{number}." + 1000 * "x")]
    for number in range(4):
        lvm.run("lvcreate", "-qq", "-an", "-V", "4M", "-n", f"v{number}", *tags, "-T", f"{group.name}/{group.pool}")

        reported = set(lvm.run("lvs", "--noheadings", "-a", "-o", "lv_name", group.name))
        assert ondisk.volumes(group.disks[0]) == reported
    lvm.run("lvremove", "-qq", "-y", *(f"{group.name}/v{number}" for number in range(4)))


def test_a_group_with_a_pool_is_removed_whole(lvm: Lvm, tmp_path: Path, new_group: NewGroup) -> None:
    before = lvm.kernel()
    group = new_group(disks=1, size=256 * MIB, pool=64 * MIB)

    assert group.pool
    assert group.left() == []
    assert lvm.kernel() > before
