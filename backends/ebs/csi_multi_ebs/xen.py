"""Volumes of instances on Xen: nothing on such a device names its volume, only the name that EC2 gave the attachment.

So the volume that a device shows is what the controller said when it was opened, and from then on the very
disk (diskseq) is what proves it. Before Linux 5.15, which counts no disks, a volume that is replaced by another
under the same name while it is open cannot be told from it.
"""

from __future__ import annotations

from pathlib import PurePath

from csi_multi.contract import InUse

from .blockdev import Kernel
from .marks import Mark, Marks

FRONTEND = "device/nodename"  # the disk's place in XenStore, such as device/vbd/51792
SEQUENCE = "diskseq"


def named(kernel: Kernel, attachment: str) -> str | None:
    """Return the Xen disk of an attachment (/dev/xvdba or /dev/sdba), None when there is none."""
    name = PurePath(attachment).name
    for disk in (name, name.replace("sd", "xvd", 1)):
        if disk and (kernel.text(disk, FRONTEND) or "").startswith("device/vbd/"):
            return disk
    return None


def marked(kernel: Kernel, mark: Mark) -> str | None:
    """Return the disk that was opened, None when it is gone, even if another has its name now."""
    same = mark.means(kernel.text(mark.disk, SEQUENCE))
    return mark.disk if same and kernel.text(mark.disk, FRONTEND) else None


def proof(kernel: Kernel, disk: str, mark: Mark | None) -> dict[str, str]:
    """Return what tells the opened disk from every other; an empty text means that it is gone."""
    sequence = {SEQUENCE: mark.sequence} if mark and mark.sequence else {}
    return {FRONTEND: kernel.text(disk, FRONTEND) or "", **sequence}


def displace(kernel: Kernel, marks: Marks, handle: str, disk: str) -> None:
    """Forget who else had this disk open: the controller says that it is this volume's. Raises InUse."""
    for other, mark in marks.others(handle).items():
        if mark.disk != disk or not kernel.text(disk, FRONTEND):
            continue
        if marked(kernel, mark) and kernel.in_use(kernel.dev / disk):
            raise InUse(
                f"{kernel.dev / disk} is in use as volume {other}, but said to be {handle}; "
                f"unpublish and unstage {other} first"
            )
        marks.remove(other)
