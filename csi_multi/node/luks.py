"""The commands of LUKS2 on a device, and the mappers that are open on this node.

A passphrase goes to cryptsetup through its standard input. The kernel gets the volume's key with the mapper, not in a
keyring of the process that opened it, so that the mapper can be resized without the passphrase (cryptsetup-resize(8)).
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from ..contract.errors import FailedPrecondition, InUse, StorageError, Unavailable
from ..contract.machine import Host
from ..contract.model import Device
from ..host import sysfs
from . import blank_check
from .encryption_options import HEADER, EncryptionOptions

CONTROL = Path("/dev/mapper/control")
LABEL = "csi-multi"  # in the header of every volume that this driver has encrypted
# Exit statuses of cryptsetup, cryptsetup(8).
NO_PERMISSION = 2  # no key slot for this passphrase
NOT_A_DEVICE = 4  # also: no mapper of this name
IN_USE = 5
COPIES = (0, 16384)  # where the two copies of a header begin that cryptsetup makes by default
MAGIC = (b"LUKS\xba\xbe", b"SKUL\xba\xbe")  # of the first, of the second
SECTOR = 512  # bytes, the unit of --offset
TIME_LIMIT = 300.0  # seconds; deriving a key can wait for memory and processors


class WrongPassphrase(FailedPrecondition):
    """No key slot opens with the passphrase."""


def mapper_path(name: str) -> Path:
    return CONTROL.parent / name


def open_number(name: str) -> str:
    """Return the number of the mapper with this name that is open on this node, "" when none is."""
    number = sysfs.find_number(mapper_path(name))
    return number if number and sysfs.attribute(number, "dm/name") == name else ""


def is_over(mapper: str, device: Device) -> bool:
    """Whether a mapper, by its number, is open over this device."""
    slaves = (sysfs.BLOCK / mapper / "slaves").iterdir()
    return device.number in {sysfs.attribute(mapper, f"slaves/{one.name}/dev") for one in slaves}


def require_device_mapper(host: Host) -> None:
    """Load dm-crypt where device-mapper is not there. Raises FailedPrecondition where the kernel has neither."""
    if not CONTROL.exists():
        with contextlib.suppress(StorageError):  # told below
            host.run("modprobe", "--quiet", "dm_crypt")
    if not CONTROL.exists():
        raise FailedPrecondition(
            "this node cannot open encrypted volumes: its kernel has no device-mapper here; load the module dm_crypt, "
            "and let the driver's container see the node's /dev"
        )


def has_header(host: Host, device: Device) -> bool:
    """Whether the device has a LUKS2 header, of which one of its two copies is whole."""
    return host.run("cryptsetup", "isLuks", "--type", "luks2", str(device.path), ok=(0, 1, NOT_A_DEVICE)).status == 0


def is_ours(device: Device) -> bool:
    """Whether the device begins with a header of a volume that this driver has encrypted, or has the second copy."""
    with blank_check.open_device(device) as opened:
        copies = [opened.read(place, blank_check.SAMPLE_BYTES) for place in COPIES if place < opened.size]
    return any(_is_ours(copy) for copy in copies)


def _is_ours(header: bytes) -> bool:
    magic, version = struct.unpack_from(">6sH", header)
    return magic in MAGIC and version == 2 and header[24:72].rstrip(b"\0") == LABEL.encode()


def format_device(host: Host, device: Device, options: EncryptionOptions, passphrase: str) -> None:
    """Make a LUKS2 header. Only for a device that is proven blank."""
    sector: int = options.encryption_sector_size
    if sysfs.size_of(device.number) % sector:
        sector = SECTOR
    host.run(
        *("cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2", "--key-file", "-", "--label", LABEL),
        *("--cipher", options.encryption_cipher, "--key-size", str(options.encryption_key_size)),
        *("--sector-size", str(sector), "--offset", str(HEADER // SECTOR)),
        *_derivation(options),
        str(device.path),
        stdin=passphrase,
        timeout=TIME_LIMIT,
    )


def _derivation(options: EncryptionOptions) -> tuple[str, ...]:
    """Return how a key is derived from a passphrase. pbkdf2 takes no memory."""
    kind, kib = options.encryption_pbkdf, options.encryption_pbkdf_memory * 1024
    memory = () if kind == "pbkdf2" else ("--pbkdf-memory", str(kib))
    return ("--pbkdf", kind, "--iter-time", str(options.encryption_pbkdf_time), *memory)


def open_device(
    host: Host, device: Device, name: str, options: EncryptionOptions, passphrase: str, *, read_only: bool
) -> None:
    """Open a mapper over the device. Raises WrongPassphrase."""
    flags = {
        "--readonly": read_only,
        "--allow-discards": options.encryption_discard,
        "--perf-no_read_workqueue": options.encryption_no_read_workqueue,
        "--perf-no_write_workqueue": options.encryption_no_write_workqueue,
    }
    result = host.run(
        *("cryptsetup", "open", "--type", "luks2", "--key-file", "-", "--disable-keyring"),
        *(flag for flag, wanted in flags.items() if wanted),
        *(str(device.path), name),
        stdin=passphrase,
        ok=(0, NO_PERMISSION, IN_USE),
        timeout=TIME_LIMIT,
    )
    if result.status == IN_USE:
        _remove_unfinished(host, name)
        raise Unavailable(
            f"{mapper_path(name)} was left behind by a cryptsetup that was killed, and is removed now; try again"
        )
    if result.status == NO_PERMISSION:
        raise WrongPassphrase(
            f"the passphrase in the node-stage secret opens no key slot of {device.path}; nothing was changed; put the "
            "passphrase that the volume was encrypted with into the secret"
        )


def _remove_unfinished(host: Host, name: str) -> None:
    """Remove a mapper without a table: a cryptsetup that was killed has made it, and nothing can use it.

    Raises InUse for one with a table.
    """
    if host.run("dmsetup", "table", name, ok=(0, 1)).stdout.strip():
        raise InUse(f"{mapper_path(name)} is open over another device than this volume's; unstage the volume first")
    host.run("dmsetup", "remove", "--noudevsync", name, ok=(0, 1))


def opens(host: Host, device: Device, passphrase: str) -> bool:
    """Whether a key slot of the device opens with this passphrase."""
    argv = ("cryptsetup", "open", "--test-passphrase", "--type", "luks2", "--key-file", "-", str(device.path))
    return host.run(*argv, stdin=passphrase, ok=(0, NO_PERMISSION), timeout=TIME_LIMIT).status == 0


def add_passphrase(host: Host, device: Device, known: str, new: str, options: EncryptionOptions) -> None:
    """Let the device open with a second passphrase. Both come one after the other through the standard input."""
    host.run(
        *("cryptsetup", "luksAddKey", "--batch-mode", *_derivation(options)),
        *("--key-file", "-", "--keyfile-size", str(len(known.encode()))),
        *("--new-keyfile-size", str(len(new.encode())), str(device.path), "-"),
        stdin=known + new,
        timeout=TIME_LIMIT,
    )


def remove_passphrase(host: Host, device: Device, passphrase: str) -> None:
    """Remove the key slot that opens with this passphrase, if there is one. Another one has to open the device."""
    argv = ("cryptsetup", "luksRemoveKey", "--batch-mode", "--key-file", "-", str(device.path))
    host.run(*argv, stdin=passphrase, ok=(0, NO_PERMISSION), timeout=TIME_LIMIT)


def close_device(host: Host, name: str) -> None:
    """Close the mapper, also when it is closed already. Raises InUse."""
    if host.run("cryptsetup", "close", name, ok=(0, NOT_A_DEVICE, IN_USE)).status == IN_USE:
        raise InUse(f"{mapper_path(name)} is in use on this node; look for a process or container that uses it")


def resize(host: Host, name: str) -> None:
    """Let the mapper fill its device."""
    host.run("cryptsetup", "resize", name)
