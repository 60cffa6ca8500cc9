"""The encryption that a StorageClass may ask for on every backend, what it takes of a volume's space, and its context.

The names of cipher, key and sectors are those of ceph-csi.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from ..contract.errors import InvalidArgument
from ..contract.model import UNLIMITED, BlockMap, CapacityReport, Extent, SizeRange, Strings
from ..contract.params import Doc, Schema, camel, parse
from .mkfs_options import FilesystemOptions

KEY = "encryption"  # of the class, and in the volume context
# A driver of an earlier version refuses to stage a volume with a key of mkfs options that it does not know. Without
# this one it would not see that the volume is encrypted, and format it in clear.
OLD_NODES = "fs.encryption"
HEADER = 16 * 1024 * 1024  # bytes before the data: what cryptsetup gives a LUKS2 header


class EncryptionOptions(Schema, frozen=True):
    encryption: Annotated[
        Literal["luks2"] | None, Doc("encrypt on the node all that is written to the volume, with LUKS2 (dm-crypt)")
    ] = None
    encryption_cipher: Annotated[
        str, Doc("the cipher of a new volume, as dm-crypt names it", pattern=r"^[a-z0-9:(),_-]{3,60}$")
    ] = "aes-xts-plain64"
    encryption_key_size: Annotated[
        Literal[256, 512], Doc("bits of the key of a new volume; aes-xts uses half of them for AES")
    ] = 512
    encryption_sector_size: Annotated[
        Literal[512, 4096], Doc("bytes that are encrypted together, and the sector of the device that a pod sees")
    ] = 4096
    encryption_pbkdf: Annotated[
        Literal["argon2id", "pbkdf2"], Doc("how a key is derived from the passphrase; pbkdf2 needs no memory")
    ] = "argon2id"
    encryption_pbkdf_memory: Annotated[
        int, Doc("MiB that argon2id uses on the node whenever a volume is staged", ge=1, le=1024)
    ] = 64
    encryption_pbkdf_time: Annotated[
        int, Doc("milliseconds that deriving the key takes, on the node that formats the volume", ge=100, le=10000)
    ] = 500
    encryption_discard: Annotated[
        bool, Doc("let discards reach the storage; whoever sees the storage then sees which blocks are in use")
    ] = False
    encryption_no_read_workqueue: Annotated[
        bool, Doc("read without the queue of dm-crypt (no_read_workqueue); often quicker on NVMe disks")
    ] = False
    encryption_no_write_workqueue: Annotated[
        bool, Doc("write without the queue of dm-crypt (no_write_workqueue); often quicker on NVMe disks")
    ] = False

    @property
    def enabled(self) -> bool:
        return self.encryption is not None


KEYS = frozenset(camel(name) for name in EncryptionOptions.__struct_fields__)
DEFAULTS = EncryptionOptions()


def to_context(options: EncryptionOptions) -> dict[str, str]:
    """Return what the node must know for the life of the volume."""
    if not options.enabled:
        return {}
    values = {camel(name): getattr(options, name) for name in options.__struct_fields__}
    defaults = {camel(name): getattr(DEFAULTS, name) for name in options.__struct_fields__}
    found = {key: str(value).lower() for key, value in values.items() if value != defaults[key]}
    return found | {OLD_NODES: "luks2"}


def from_context(volume_context: Strings) -> EncryptionOptions:
    """Return the options in a volume context. Raises InvalidArgument for values that to_context never writes."""
    own = {key: value for key, value in volume_context.items() if key in KEYS}
    return parse(EncryptionOptions, own, "encryption in volume_context") if own else DEFAULTS


def validate(options: EncryptionOptions, filesystem: FilesystemOptions) -> None:
    """Raise InvalidArgument for options that exclude each other."""
    alone = [camel(name) for name in options.__struct_fields__ if getattr(options, name) != getattr(DEFAULTS, name)]
    if alone and not options.enabled:
        raise InvalidArgument(
            f"parameters: {alone[0]!r} has no effect without encryption: luks2; add that, or remove it"
        )
    if options.enabled and (filesystem.block_size or options.encryption_sector_size) < options.encryption_sector_size:
        raise InvalidArgument(
            f"parameters: 'blockSize' {filesystem.block_size} is smaller than a sector of the encrypted device, "
            f'{options.encryption_sector_size} bytes; set encryptionSectorSize: "512", or a larger blockSize'
        )


def overhead(context: Strings) -> int:
    """Return the bytes of a volume or snapshot with this context that its user does not get."""
    return HEADER if context.get(KEY) else 0


def with_overhead(size: SizeRange, extra: int) -> SizeRange:
    """Return the size range of the storage's volume for one of the user's; `extra` is its overhead."""
    if not extra:
        return size
    return SizeRange(
        required=size.required + extra if size.required else 0,
        limit=size.limit + extra if size.limit else 0,
        least=max(size.least, 1) + extra,
    )


def capacity_without(report: CapacityReport, extra: int) -> CapacityReport:
    """Return what the user can have of what can be created."""

    def less(size: int) -> int:
        return size if size == UNLIMITED else max(size - extra, 0)

    return replace(
        report,
        available=less(report.available),
        maximum=None if report.maximum is None else less(report.maximum),
        minimum=None if report.minimum is None else max(report.minimum - extra, 1),
    )


def blocks_without(found: BlockMap, extra: int) -> BlockMap:
    """Return a map of the storage's blocks as one of the blocks that the user sees, which begin `extra` bytes later."""
    if not extra:
        return found
    block_size = 0 if found.block_size and extra % found.block_size else found.block_size
    return replace(found, size=found.size - extra, extents=_shifted(found.extents, extra), block_size=block_size)


def _shifted(extents: Iterator[Extent], extra: int) -> Iterator[Extent]:
    for one in extents:
        start, end = max(one.offset - extra, 0), one.offset + one.length - extra
        if end > start:
            yield Extent(offset=start, length=end - start)
