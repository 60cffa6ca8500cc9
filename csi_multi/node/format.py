"""Never format data: make a filesystem only on a device that is proven blank (design section 5)."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from ..contract.backend import Backend
from ..contract.errors import FailedPrecondition
from ..contract.machine import CommandFailed, Host
from ..contract.model import Blank, Device
from ..host import sysfs
from . import blank_check, kernel_features
from .filesystem import BY_NAME, Filesystem
from .mkfs_options import DEFAULT, FilesystemOptions

log = logging.getLogger(__name__)

NOTHING_FOUND = 2  # exit status of blkid -p; also of an unreadable device, hence the reads before
TIME_LIMIT = 900.0  # seconds for commands whose work grows with the volume


def find_or_make(
    host: Host, backend: Backend, handle: str, device: Device, fs_type: str, options: FilesystemOptions
) -> tuple[Filesystem, bool]:
    """Make sure that the device holds this filesystem ("": any we support, else the default).

    Return it, and whether it was made now. Raises FailedPrecondition when the device holds anything
    else, or is not proven blank.
    """
    sysfs.verify(device)
    found, data = _survey(host, handle, device)
    kind = BY_NAME[fs_type or (found if found in BY_NAME else DEFAULT)]
    if found == kind.name and (device.read_only or device.blank is not Blank.INTERRUPTED):
        return kind, False
    _refuse_to_format(handle, device, kind, found)
    if data is not None and device.blank is Blank.ZEROED:
        raise _occupied(handle, device, f"data without a signature (at byte {data})")
    if found == kind.name and _whole(host, device, kind):
        return kind, False  # mkfs had finished, and the driver died before it could say so
    if found:
        log.warning("volume %s: formatting was interrupted; %s is formatted again", handle, device.path)
        blank_check.wipe(device)
    backend.formatting(handle)
    host.run(*kind.make(host, options, kernel_features.running()), str(device.path), timeout=TIME_LIMIT)
    return kind, True


def _survey(host: Host, handle: str, device: Device) -> tuple[str, int | None]:
    """Return what filesystem is on the device ("": none), and a place that does not read as zeros."""
    with blank_check.alone(device) as disk, ThreadPoolExecutor(max_workers=1) as beside:
        here = copy_context()  # whose volume it is
        found = beside.submit(
            here.run, _probe, host, handle, device
        )  # beside the reads: both mostly wait for the device
        # In any case: blkid says of a device that cannot be read the same as of a blank one.
        data = blank_check.data_on(disk, samples=device.blank is Blank.ZEROED)
        return found.result(), data


def _probe(host: Host, handle: str, device: Device) -> str:
    """Return the type of the one filesystem on the device, "" for nothing. Refuses all else."""
    try:
        result = host.run("blkid", "-p", "-o", "export", str(device.path), ok=(0, NOTHING_FOUND))
    except CommandFailed as error:
        raise FailedPrecondition(
            f"volume {handle!r}: blkid gives no clear answer about {device.path} (status {error.status}), so it is "
            "not touched; look at it with wipefs, and remove the signature that does not belong there"
        ) from None
    if result.status == NOTHING_FOUND:
        return ""
    facts = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    found, table = facts.get("TYPE", ""), facts.get("PTTYPE", "")
    if not found or table:
        raise _occupied(handle, device, f"a partition table ({table})" if table else "a signature")
    return found


def _refuse_to_format(handle: str, device: Device, kind: Filesystem, found: str) -> None:
    if found and (device.blank is not Blank.INTERRUPTED or found not in BY_NAME):
        raise _occupied(handle, device, found, f"not {kind.name} as asked for")
    if device.read_only:
        raise FailedPrecondition(
            f"volume {handle!r} is blank and staged read-only, so it cannot be formatted; "
            "stage it once with a mode that may write"
        )
    if device.blank is Blank.NEVER:
        raise FailedPrecondition(
            f"volume {handle!r} was used before or made as a copy, but {device.path} holds no filesystem; it is never "
            f"formatted: check the data, or make {kind.name} on it by hand"
        )


def _occupied(handle: str, device: Device, found: str, rule: str = "so it is not formatted") -> FailedPrecondition:
    return FailedPrecondition(
        f"volume {handle!r}: {device.path} holds {found}, {rule}; "
        "ask for what it holds, or erase it by hand if nobody needs it"
    )


def _whole(host: Host, device: Device, kind: Filesystem) -> bool:
    try:
        host.run(*kind.whole, str(device.path), timeout=TIME_LIMIT)
    except CommandFailed:
        return False
    return True


def repair(host: Host, handle: str, device: Device, kind: Filesystem) -> None:
    """Run the filesystem's own preparation before it is mounted read-write."""
    if not kind.repair:
        return
    try:
        host.run(*kind.repair, str(device.path), ok=(0, 1, 2, 3), timeout=TIME_LIMIT)  # 1, 2: it was corrected
    except CommandFailed as error:
        if any(phrase in error.stdout + error.stderr for phrase in ("is in use", "is mounted")):
            raise  # not final: somebody, maybe a command of a driver that was killed, has the device open
        raise FailedPrecondition(
            f"volume {handle!r}: {kind.name} on {device.path} needs repair by hand: {kind.repair[0]} exited with "
            f"status {error.status}; run {kind.repair[0]} on the device while the volume is not staged"
        ) from None
