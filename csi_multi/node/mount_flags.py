"""Mount flags: which ones are refused, which ones the mount table shows, and which ones a mount by call must have.

Flags may be sensitive: no message here contains one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..contract.errors import InvalidArgument

KERNEL_VISIBLE = frozenset({"relatime"})  # what the mount table shows of a mount without flags
DEFAULTS = ("nosuid", "nodev")  # before the flags of the class, which may undo them with suid and dev
DEFAULT_VISIBLE = KERNEL_VISIBLE | frozenset(DEFAULTS)

# Flags that make mount(8) do another operation, or use another source or target.
_OPERATIONS = frozenset(
    ["bind", "rbind", "move", "remount", "loop", "offset", "sizelimit", "helper", "uhelper"]
    + ["X-mount.subdir", "X-mount.mkdir", "x-mount.mkdir"]
    + [prefix + kind for prefix in ("", "r") for kind in ("private", "shared", "slave", "unbindable")]
)
_RULE = (
    "it must not be bind, move, remount, loop or a propagation type, nor name a source, a target or a helper; "
    "remove it from the mount options"
)

_ATIME = frozenset({"noatime", "relatime"})
_RELATIVE = ("relatime", "nostrictatime")
# mount(8) ignores "defaults", so it is not here.
# flag -> (what it adds to the flags that the mount table shows, what it removes from them).
_EFFECTS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    **{flag: (frozenset({flag}), frozenset()) for flag in ("ro", "nosuid", "nodev", "noexec", "nodiratime")},
    "nosymfollow": (frozenset({"nosymfollow"}), frozenset()),
    "noatime": (frozenset({"noatime"}), _ATIME),
    **dict.fromkeys((*_RELATIVE, "atime"), (frozenset({"relatime"}), _ATIME)),
    "strictatime": (frozenset(), _ATIME),
    "rw": (frozenset(), frozenset({"ro"})),
    "suid": (frozenset(), frozenset({"nosuid"})),
    "dev": (frozenset(), frozenset({"nodev"})),
    "exec": (frozenset(), frozenset({"noexec"})),
    "diratime": (frozenset(), frozenset({"nodiratime"})),
    "symfollow": (frozenset(), frozenset({"nosymfollow"})),
    **dict.fromkeys(("user", "users"), (frozenset({"nosuid", "nodev", "noexec"}), frozenset())),
    **dict.fromkeys(("owner", "group"), (frozenset({"nosuid", "nodev"}), frozenset())),
}
_VISIBLE = frozenset().union(*(adds for adds, _ in _EFFECTS.values()))
# Of users: mount(8) also records who may unmount it.
_OF_USERS = frozenset({"user", "users", "owner", "group"})
# Options that a filesystem gets as they are. mount(8) knows many more that it acts upon, or keeps to itself (x-*,
# nofail, _netdev, context with SELinux, loop, verity.*), and which ones depends on its version.
_OF_FILESYSTEM = re.compile(
    r"nouuid|inode64|norecovery|noload|(no)?discard|discard=(a?sync)|(no)?barrier|barrier=[01]|commit=\d{1,9}"
    r"|errors=(remount-ro|continue|panic)|data=(ordered|writeback|journal)|logbufs=\d|logbsize=\d{1,6}k?"
    r"|compress(-force)?=(zlib|lzo|zstd)(:\d{1,2})?",
    re.ASCII,
)


def validate(flags: Iterable[str]) -> None:
    """Raise InvalidArgument, by position, for a flag that mount(8) would not take as a plain flag."""
    for position, flag in enumerate(flags, 1):
        if any(character in flag for character in "\n\r\0"):
            raise InvalidArgument(f"mount flag {position} contains a line end or NUL; remove it from the mount options")
        if flag.count('"') % 2:
            raise InvalidArgument(f"mount flag {position} has an unbalanced quote; close it in the mount options")
        if any(word.partition("=")[0] in _OPERATIONS for word in flag.split(",")):
            raise InvalidArgument(f"mount flag {position} is not allowed: {_RULE}")


def visible(options: Iterable[str]) -> frozenset[str]:
    """Return those of the options that flags of the mount point decide."""
    return _VISIBLE.intersection(options)


def apply(base: frozenset[str], flags: Iterable[str], *, read_only: bool) -> frozenset[str]:
    """Return what the mount table shows after these flags are applied to `base`, in order."""
    result = base
    for word in (word for flag in flags for word in flag.split(",")):
        if word in _RELATIVE and "noatime" in result:
            continue  # the kernel knows both, and noatime counts
        adds, removes = _EFFECTS.get(word, (frozenset(), frozenset()))
        result = (result - removes) | adds
    return result | {"ro"} if read_only else result


def of_bind(visible_flags: frozenset[str]) -> frozenset[str]:
    """Return all flags of a bind mount that the mount table is to show with these."""
    return visible_flags if visible_flags & _ATIME else visible_flags | {"strictatime"}


def for_kernel(options: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]] | None:
    """Return the flags of the mount and the filesystem's options; None when mount(8) may do more with one of them."""
    words = [word for option in options for word in option.split(",")]
    of_mount = [word for word in words if word in _EFFECTS and word not in _OF_USERS]
    of_filesystem = tuple(word for word in words if _OF_FILESYSTEM.fullmatch(word))
    if len(of_mount) + len(of_filesystem) < len(words):
        return None
    return of_bind(apply(KERNEL_VISIBLE, of_mount, read_only=False)), of_filesystem
