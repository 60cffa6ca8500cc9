"""What the kernel shows of a device: what was written to it, and that it is no earlier one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from csi_multi_lvm.kernel_devices import ActiveDevice

from csi_multi.host import loopdev, sysfs
from csi_multi.host.command import LocalHost

MIB = 2**20
STAT = "3 0 24 1 5 0 4096 2 {in_flight} 3 3 1 0 16 0 2 0"


def device(path: Path | None = None) -> ActiveDevice:
    return ActiveDevice(name="vg0-csi--a", number=sysfs.number_of(path) if path else "253:0", uuid="LVM-x")


@pytest.mark.parametrize(
    ("stat", "sectors"),
    [
        (STAT.format(in_flight=0), 4096 + 16),
        (STAT.format(in_flight=1), None),
        ("3 0 24 1 5 0 4096 2 0 3 3", None),  # of a kernel that does not count discards
        (None, None),
    ],
)
def test_what_was_written_is_known_only_while_nothing_is_being_written(
    stat: str | None, sectors: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysfs, "attribute", lambda _number, _name: stat)

    assert device().sectors_written() == sectors


@pytest.mark.root
def test_the_kernel_counts_what_is_written_to_a_device_and_gives_each_a_number_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "disk"
    file.touch()
    os.truncate(file, 4 * MIB)
    host, sequences = LocalHost(), set[str]()
    for _ in range(2):
        path = loopdev.attach(host, file)
        try:
            one = device(path)
            sequences.add(one.sequence)
            before = one.sectors_written()
            with path.open("r+b", buffering=0) as disk:
                disk.write(bytes(MIB))
                os.fsync(disk.fileno())
            after = one.sectors_written()
        finally:
            loopdev.detach(host, path)
        assert before is not None
        assert after == before + MIB // 512
    assert len(sequences - {""}) in (0, 2)
