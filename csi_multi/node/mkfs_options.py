"""The mkfs options that a StorageClass may have for all backends, and how volume_context carries them to the node.

Their names are those of aws-ebs-csi-driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from ..contract.errors import InvalidArgument
from ..contract.model import Strings
from ..contract.params import Doc, Schema, camel, parse

DEFAULT = "ext4"  # when the capability names no filesystem
PREFIX = "fs."  # of the keys in volume_context, which keeps them apart from a backend's own keys
OTHERS = frozenset({"fs.encryption"})  # for earlier versions (encryption_options.py)

# The options that mkfs of each supported filesystem accepts.
OPTIONS: Mapping[str, frozenset[str]] = {
    "ext4": frozenset(
        {
            "block_size",
            "inode_size",
            "bytes_per_inode",
            "number_of_inodes",
            "ext4_big_alloc",
            "ext4_cluster_size",
            "ext4_encryption_support",
        }
    ),
    "xfs": frozenset({"block_size", "inode_size"}),
    "btrfs": frozenset(),
}


class FilesystemOptions(Schema, frozen=True):
    block_size: Annotated[
        Literal[1024, 2048, 4096, 8192, 16384, 32768, 65536] | None,
        Doc("bytes per filesystem block (ext4, xfs); more than the page size works on few kernels"),
    ] = None
    inode_size: Annotated[
        Literal[128, 256, 512, 1024, 2048, 4096] | None,
        Doc("bytes of each inode; larger ones hold more extended attributes (ext4, xfs)"),
    ] = None
    bytes_per_inode: (
        Annotated[
            int,
            Doc(
                "one inode for this many bytes of the volume (ext4); not less than ext4ClusterSize",
                ge=1024,
                le=67108864,
            ),
        ]
        | None
    ) = None
    number_of_inodes: (
        Annotated[
            int,
            Doc(
                "the most files and directories that the filesystem can hold, its number of inodes (ext4)",
                ge=1,
                le=4294967295,
            ),
        ]
        | None
    ) = None
    ext4_big_alloc: Annotated[bool, Doc("allocate in clusters of blocks (ext4)")] = False
    ext4_cluster_size: (
        Annotated[int, Doc("bytes per cluster, with ext4BigAlloc (ext4)", ge=2048, le=268435456)] | None
    ) = None
    ext4_encryption_support: Annotated[bool, Doc("let directories be encrypted with fscrypt (ext4)")] = False


def explicit(options: FilesystemOptions) -> dict[str, int | bool]:
    """Return the options that differ from their default, by field name."""
    values = {name: getattr(options, name) for name in options.__struct_fields__}
    return {name: value for name, value in values.items() if value not in (None, False)}


def to_context(options: FilesystemOptions) -> dict[str, str]:
    return {PREFIX + camel(name): str(value).lower() for name, value in explicit(options).items()}


def from_context(volume_context: Strings) -> FilesystemOptions:
    """Return the options in a volume context. Raises InvalidArgument for values that to_context never writes."""
    others = (key for key in volume_context if key.startswith(PREFIX) and key not in OTHERS)
    own = {key.removeprefix(PREFIX): volume_context[key] for key in others}
    return parse(FilesystemOptions, own, "filesystem options in volume_context")


def validate_options(options: FilesystemOptions, fs_type: str) -> None:
    """Raise InvalidArgument when an option is not one of the filesystem ("": the default one)."""
    name = fs_type or DEFAULT
    require_supported(name)
    if wrong := sorted(camel(option) for option in explicit(options).keys() - OPTIONS[name]):
        valid = ", ".join(sorted(map(camel, OPTIONS[name]))) or "none"
        raise InvalidArgument(f"{wrong[0]!r} is not an option of {name}; its options are: {valid}")
    if options.ext4_cluster_size is not None and not options.ext4_big_alloc:
        raise InvalidArgument("'ext4ClusterSize' requires ext4BigAlloc: \"true\"; set both or none")
    if options.bytes_per_inode is not None and options.number_of_inodes is not None:
        raise InvalidArgument("'bytesPerInode' and 'numberOfInodes' exclude each other; set one of them")


def require_supported(fs_type: str) -> None:
    """Raise InvalidArgument when the node engine does not support this filesystem."""
    if fs_type not in OPTIONS:
        raise InvalidArgument(f"filesystem {fs_type!r} is not supported; supported: {', '.join(OPTIONS)}")
