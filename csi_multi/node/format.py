"""Formatting: a filesystem is made only on a device that is proven blank, so that data is never formatted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from ..contract.errors import FailedPrecondition
from ..contract.machine import Host, Result
from ..contract.model import NO_SECRETS, Blank, Device, Strings
from ..host import sysfs
from . import blank_check, exit_status, kernel_features
from .device_mounts import VolumeDevices
from .exit_status import CommandOutcome
from .filesystem import BY_NAME, FilesystemType
from .mkfs_options import DEFAULT, FilesystemOptions

log = logging.getLogger(__name__)

LUKS = "crypto_LUKS"  # blkid's name of a LUKS header
LONG_TIME_LIMIT = 900.0  # seconds for commands whose work grows with the volume


def ensure_filesystem(
    host: Host,
    backend: VolumeDevices,
    handle: str,
    device: Device,
    *,
    fs_type: str,
    options: FilesystemOptions,
    default: str = DEFAULT,
    secrets: Strings = NO_SECRETS,
) -> tuple[FilesystemType, bool]:
    """Make sure that the device holds this filesystem ("": the supported one of a used device, else the default).

    Return the filesystem, and whether the device was formatted now. Raises FailedPrecondition when the device holds
    anything else, or is not proven blank.
    """
    sysfs.verify(device)
    found, data_offset = _inspect(host, handle, device)
    used = device.blank is Blank.NEVER and found in BY_NAME
    wanted = BY_NAME[fs_type or (found if used else default)]
    if found == wanted.name and (device.read_only or device.blank is not Blank.INTERRUPTED):
        return wanted, False
    _refuse_to_format(handle, device, wanted, found)
    if device.blank is not Blank.INTERRUPTED:
        _require_unwritten(backend, handle, device, data_offset, secrets)
    if found == wanted.name and _is_complete(host, device, wanted):
        return wanted, False  # mkfs had ended, but the driver was killed before it could record that
    if found:
        log.warning("volume %s: an interrupted mkfs left %s incomplete; it is formatted again", handle, device.path)
        blank_check.wipe_start(device)
    backend.formatting(handle, secrets=secrets)
    command = wanted.mkfs_command(host, options, kernel_features.running_kernel())
    exit_status.run(host, *command, str(device.path), timeout=LONG_TIME_LIMIT)
    return wanted, True


def signature(host: Host, handle: str, device: Device) -> str:
    """Return what blkid finds on the device, "" for nothing. Raises FailedPrecondition for several things."""
    return _probe(host, handle, device)


def require_blank(host: Host, backend: VolumeDevices, handle: str, device: Device, secrets: Strings) -> None:
    """Raise FailedPrecondition unless a LUKS2 header may be written to the device: the proof for a filesystem."""
    sysfs.verify(device)
    found, data_offset = _inspect(host, handle, device)
    if found and (device.blank is not Blank.INTERRUPTED or found not in (LUKS, *BY_NAME)):
        raise _holds_data(handle, device, found, "so it is not encrypted")
    if device.read_only:
        raise _blank_and_read_only(handle)
    if device.blank is not Blank.INTERRUPTED:
        _require_unwritten(backend, handle, device, data_offset, secrets)


def _inspect(host: Host, handle: str, device: Device) -> tuple[str, int | None]:
    """Return the filesystem on the device ("": none), and the offset of a chunk that is not zeros."""
    with blank_check.open_exclusively(device) as opened, ThreadPoolExecutor(max_workers=1) as pool:
        context = copy_context()  # names the volume that the command is for
        found = pool.submit(context.run, _probe, host, handle, device)  # parallel to the reads: both wait for the disk
        # Read in any case: blkid reports a device that cannot be read like a blank one.
        data_offset = blank_check.first_nonzero(opened.read_ends())
        return found.result(), data_offset


def _require_unwritten(
    backend: VolumeDevices, handle: str, device: Device, data_offset: int | None, secrets: Strings
) -> None:
    """Raise FailedPrecondition when the device was written; by reads only where the storage itself does not know."""
    zeroed = device.blank is Blank.ZEROED
    if zeroed and data_offset is not None:
        raise _holds_unknown(handle, device, data_offset)
    written = backend.has_data(handle, secrets=secrets)
    if written:
        raise FailedPrecondition(
            f"volume {handle!r}: {device.path} holds data that this driver did not write, as its storage shows, so it "
            "is not formatted; if the data is not needed, erase it by hand with blkdiscard, or use a new volume"
        )
    if written is None and zeroed:
        with blank_check.open_exclusively(device) as opened:
            sampled = blank_check.first_nonzero(opened.read_samples())
        if sampled is not None:
            raise _holds_unknown(handle, device, sampled)
    if written is None:
        proof = "only samples of it were read, and are zeros" if zeroed else "only the note on it says that it was not"
        log.info("the storage does not know whether volume %s was written: %s", handle, proof)


def _probe(host: Host, handle: str, device: Device) -> str:
    """Return the type of the one filesystem on the device, "" for nothing. Raises FailedPrecondition for all else.

    Raises Unavailable when blkid gave no answer, as after it was killed.
    """
    outcome, result = exit_status.run(host, "blkid", "-p", "-o", "export", str(device.path))
    if outcome is CommandOutcome.AMBIGUOUS:
        raise FailedPrecondition(
            f"volume {handle!r}: blkid gives no clear answer about {device.path} (status {result.status}), so it is "
            "not touched; look at it with wipefs, and remove the signature that does not belong there"
        )
    if outcome is CommandOutcome.NOTHING:
        return ""
    facts = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    found, table = facts.get("TYPE", ""), facts.get("PTTYPE", "")
    if not found or table:
        raise _holds_data(handle, device, f"a partition table ({table})" if table else "a signature")
    return found


def _refuse_to_format(handle: str, device: Device, wanted: FilesystemType, found: str) -> None:
    if found and (device.blank is not Blank.INTERRUPTED or found not in BY_NAME):
        raise _holds_data(handle, device, found, f"not {wanted.name} as requested")
    if device.read_only:
        raise _blank_and_read_only(handle)
    if device.blank is Blank.NEVER:
        raise FailedPrecondition(
            f"volume {handle!r} was used before or is a copy, but {device.path} holds no filesystem, and such a volume "
            f"is never formatted; check the data, or make {wanted.name} on it by hand"
        )


def _blank_and_read_only(handle: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"volume {handle!r} is blank and staged read-only, so it cannot be formatted; "
        "stage it once with an access mode that allows writes"
    )


def _holds_data(handle: str, device: Device, found: str, rule: str = "so it is not formatted") -> FailedPrecondition:
    return FailedPrecondition(
        f"volume {handle!r}: {device.path} holds {found}, {rule}; "
        "request what it holds, or erase it by hand if the data is not needed"
    )


def _holds_unknown(handle: str, device: Device, offset: int) -> FailedPrecondition:
    return _holds_data(handle, device, f"data without a signature (at byte {offset})")


def _is_complete(host: Host, device: Device, fs_type: FilesystemType) -> bool:
    outcome, _ = exit_status.run(host, *fs_type.check_command, str(device.path), timeout=LONG_TIME_LIMIT)
    return outcome is CommandOutcome.DONE


def repair(host: Host, handle: str, device: Device, fs_type: FilesystemType) -> None:
    """Run the filesystem's repair command, which a read-write mount needs first."""
    if fs_type.repair_command:
        run_repair(host, handle, device, fs_type.repair_command)


def run_repair(host: Host, handle: str, device: Device, command: Sequence[str]) -> tuple[CommandOutcome, Result]:
    """Run a command that repairs or grows; return its answer, DONE or REFUSED.

    Raises FailedPrecondition when it leaves errors; Unavailable when it cannot work.
    """
    outcome, result = exit_status.run(host, *command, str(device.path), timeout=LONG_TIME_LIMIT)
    if outcome is CommandOutcome.DAMAGED:
        raise FailedPrecondition(
            f"volume {handle!r}: the filesystem on {device.path} needs repair by hand: {command[0]} exited with "
            f"status {result.status}; run {command[0]} on the device while the volume is not staged"
        )
    return outcome, result
