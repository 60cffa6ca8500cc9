"""Mount flags: which are refused, what the kernel will show of them, what a bind has to repeat.

Flags may be sensitive: no message here contains one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..contract.errors import InvalidArgument

DEFAULT = frozenset({"relatime"})  # what the kernel shows of a mount without any flag

# What mount(8) takes for another operation, another source or another place.
_OPERATIONS = frozenset(
    ["bind", "rbind", "move", "remount", "loop", "offset", "sizelimit", "helper", "uhelper"]
    + ["X-mount.subdir", "X-mount.mkdir", "x-mount.mkdir"]
    + [prefix + kind for prefix in ("", "r") for kind in ("private", "shared", "slave", "unbindable")]
)
_RULE = "it may not be bind, move, remount, loop, a propagation type, or name a source, place or helper"

_ATIME = frozenset({"noatime", "relatime"})
# word -> (what it adds to the flags shown in the mount table, what it takes away)
_EFFECTS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    **{flag: (frozenset({flag}), frozenset()) for flag in ("ro", "nosuid", "nodev", "noexec", "nodiratime")},
    "nosymfollow": (frozenset({"nosymfollow"}), frozenset()),
    "noatime": (frozenset({"noatime"}), _ATIME),
    **dict.fromkeys(("relatime", "atime", "nostrictatime"), (frozenset({"relatime"}), _ATIME)),
    "strictatime": (frozenset(), _ATIME),
    "rw": (frozenset(), frozenset({"ro"})),
    "suid": (frozenset(), frozenset({"nosuid"})),
    "dev": (frozenset(), frozenset({"nodev"})),
    "exec": (frozenset(), frozenset({"noexec"})),
    "diratime": (frozenset(), frozenset({"nodiratime"})),
    "symfollow": (frozenset(), frozenset({"nosymfollow"})),
    "defaults": (frozenset(), frozenset({"ro", "nosuid", "nodev", "noexec"})),
    **dict.fromkeys(("user", "users"), (frozenset({"nosuid", "nodev", "noexec"}), frozenset())),
    **dict.fromkeys(("owner", "group"), (frozenset({"nosuid", "nodev"}), frozenset())),
}
_VISIBLE = frozenset().union(*(adds for adds, _ in _EFFECTS.values()))


def check(flags: Iterable[str]) -> None:
    """Raise InvalidArgument, by position, for a flag that would not end up as a flag."""
    for position, flag in enumerate(flags, 1):
        if any(character in flag for character in "\n\r\0"):
            raise InvalidArgument(f"mount flag {position} contains a line end or NUL; remove it from the mount options")
        if flag.count('"') % 2:
            raise InvalidArgument(f"mount flag {position} has an unbalanced quote; close it in the mount options")
        if any(word.partition("=")[0] in _OPERATIONS for word in flag.split(",")):
            raise InvalidArgument(f"mount flag {position} is not allowed: {_RULE}")


def shown(options: Iterable[str]) -> frozenset[str]:
    """Keep what the flags of a mount point decide."""
    return _VISIBLE.intersection(options)


def effective(base: frozenset[str], flags: Iterable[str], *, read_only: bool) -> frozenset[str]:
    """Return what the mount table shows after these flags are applied over `base`, in order."""
    result = base
    for word in (word for flag in flags for word in flag.split(",")):
        adds, drops = _EFFECTS.get(word, (frozenset(), frozenset()))
        result = (result - drops) | adds
    return result | {"ro"} if read_only else result


def of_bind(wanted: frozenset[str]) -> str:
    """Write the options of a bind: a remount replaces all flags, so it must repeat what it keeps."""
    words = sorted(wanted if wanted & _ATIME else wanted | {"strictatime"})
    return ",".join(["bind", *words])
