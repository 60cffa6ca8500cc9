"""What EBS needs of the door to the kernel beside what every backend does: NVMe disks that have grown."""

from __future__ import annotations

from pathlib import Path

from csi_multi.host import blockdev
from csi_multi.host.blockdev import opened, os_errors_as_unavailable

from . import nvme


class Kernel(blockdev.BlockDevices):
    def bytes_behind(self, disk: str, path: Path) -> int | None:
        """Return the size the NVMe controller tells now, which the kernel may not have noticed; None: no NVMe."""
        namespace = self.text(disk, "nsid")
        if namespace is None:
            return None
        with os_errors_as_unavailable(path), opened(path) as descriptor:
            return nvme.size(descriptor, int(namespace))

    def rescan(self, disk: str) -> None:
        """Let the kernel look at the controllers of an NVMe disk again."""
        # the controller, or with several paths the subsystem above them
        device = self.sys / "block" / disk / "device"
        for file in (device / "rescan_controller", *device.glob("nvme*/rescan_controller")):
            if file.exists():
                with os_errors_as_unavailable(file):
                    file.write_text("1")
