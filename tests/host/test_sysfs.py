"""Facts about block devices, and what their absence means."""

from __future__ import annotations

from pathlib import Path

import pytest

from csi_multi.contract import NotFound
from csi_multi.host import sysfs
from csi_multi.host.sysfs import DeviceGone


def test_a_device_that_vanished_does_not_pass_for_a_volume_that_does_not_exist(tmp_path: Path) -> None:
    for look in (lambda: sysfs.number_of(tmp_path / "gone"), lambda: sysfs.size_of("4095:1")):
        with pytest.raises(DeviceGone) as found:
            look()
        assert not isinstance(found.value, NotFound)


def test_what_is_not_a_block_device_has_no_number(tmp_path: Path) -> None:
    with pytest.raises(DeviceGone, match="is not a block device"):
        sysfs.number_of(tmp_path)
