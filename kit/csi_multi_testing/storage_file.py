"""The file of `csi-multi conformance --storage`: the fields of Storage that are data, or hooks as commands, in YAML.

storage:
  size: 1073741824
  nodes: ["node-1;cloud=i-0abc", "node-2;cloud=i-0def"]
  unreachable: [{zone: eu-west-1c}]
  away: [umount, --lazy, /srv/volumes]
  back: [mount, /dev/vdb, /srv/volumes]
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec

from csi_multi.config.document import ConfigError, read_document
from csi_multi.config.settings import Config
from csi_multi.contract import Doc, NotFound, Schema, ids, unknown
from csi_multi.contract.params import describe
from csi_multi.host.command import LocalHost

from . import hooks
from .storage import MIB, Connect, Storage

SECTION = "storage"
HARMFUL = ("away", "occupy", "damage", "shorten", "rotate", "power_cut", "server_pid")
Text = dict[str, str]


class StorageFile(Schema, frozen=True, kw_only=True):
    """The `storage:` section. A key that is left out skips the checks that need it."""

    size: Annotated[
        int, Doc("bytes of a volume that is cheap to create; three times as much must be possible too", ge=1)
    ] = 16 * MIB
    exact_sizes: Annotated[tuple[int, ...], Doc("sizes that can be created exactly")] = ()
    too_large: Annotated[int, Doc("bytes that no volume can have", ge=1)] = 1 << 60
    overcommitted: Annotated[bool, Doc("whether new volumes take nothing of the capacity")] = False
    large: Annotated[
        int | None,
        Doc("bytes of a large volume; three of them must hold 130 MiB of data each; default: no large volume is made"),
    ] = None
    occupy: Annotated[
        tuple[str, ...],
        Doc("command that takes space of the storage: as many bytes as its last argument says, or what is left"),
    ] = ()
    vacate: Annotated[tuple[str, ...], Doc("command that gives this space back after `occupy`")] = ()
    parameters: Annotated[Text, Doc("StorageClass parameters of the volumes, without `backend`")] = msgspec.field(
        default_factory=dict
    )
    other_parameters: Annotated[Text | None, Doc("different, equally valid ones")] = None
    mutable: Annotated[Text, Doc("VolumeAttributesClass parameters of the volumes")] = msgspec.field(
        default_factory=dict
    )
    other_mutable: Annotated[Text | None, Doc("different, equally valid ones")] = None
    secrets: Annotated[Text, Doc("sent with every request that takes secrets")] = msgspec.field(default_factory=dict)
    nodes: Annotated[tuple[str, ...], Doc("node ids to which volumes can be attached, two or more")] = ()
    reachable: Annotated[tuple[Text, ...], Doc("segments where volumes can be created, without prefix")] = ()
    unreachable: Annotated[tuple[Text, ...], Doc("segments where volumes cannot be created")] = ()
    devices: Annotated[bool, Doc("whether devices can be opened on this machine; default: true for root")] = (
        msgspec.field(default_factory=lambda: os.geteuid() == 0)
    )
    files: Annotated[
        tuple[str, ...], Doc("directories of the storage: faults are injected at calls on files below them")
    ] = ()
    records: Annotated[
        tuple[str, ...], Doc("directories with records of the storage, which checks damage; default: `files`")
    ] = ()
    away: Annotated[tuple[str, ...], Doc("command after which the storage is not reachable, or not mounted")] = ()
    back: Annotated[tuple[str, ...], Doc("command that ends that")] = ()
    damage: Annotated[tuple[str, ...], Doc("command that damages a volume; its handle is added as an argument")] = ()
    undamage: Annotated[tuple[str, ...], Doc("command that repairs it, with the handle too")] = ()
    shorten: Annotated[
        tuple[str, ...], Doc("command after which the last block of a volume is lost; its handle is added")
    ] = ()
    lengthen: Annotated[tuple[str, ...], Doc("command that brings it back, with the handle too")] = ()
    rotate: Annotated[
        tuple[str, ...],
        Doc("command that changes the credential of the storage, and puts it where the configuration has it"),
    ] = ()
    rotate_back: Annotated[tuple[str, ...], Doc("command that does the same once more")] = ()
    effect: Annotated[
        tuple[str, ...], Doc("command that prints what of `mutable` is in force for a volume; its handle is added")
    ] = ()
    snapshots: Annotated[int | None, Doc("the most snapshots that one volume can have, deleted ones included")] = None
    power_cut: Annotated[tuple[str, ...], Doc("command that cuts the power of the storage, and starts it again")] = ()
    server_pid: Annotated[
        tuple[str, ...],
        Doc("command that prints the process id of the storage's server on this machine; checks kill it"),
    ] = ()
    server_start: Annotated[
        tuple[str, ...], Doc("command that starts the storage's server again, and returns when it serves requests")
    ] = ()
    complete: Annotated[
        bool, Doc("whether volumes are copied 50 times while written, and chains deleted in all orders: minutes")
    ] = False


def help_text() -> str:
    """Return a line for every key of the section."""
    lines = [f"  {name}: {text} ({kind})" for name, kind, _, text in describe(StorageFile)]
    return "\n".join([f"The file of --storage has one section, `{SECTION}:`, with any of these keys:", *lines])


def load(file: Path | None) -> StorageFile:
    """Read the file's section; without a file everything has its default. Raises ConfigError."""
    if file is None:
        return StorageFile()
    document = read_document(file)
    for key in document.values:
        if key != SECTION:
            raise document.error((key,), unknown("top level", key, [SECTION]))
    values = document.values.get(SECTION)
    if not isinstance(values, dict):
        raise document.error((SECTION,), f"'{SECTION}' must be a mapping")
    return document.section((SECTION,), StorageFile, values)


def harmful_hooks(given: StorageFile) -> list[str]:
    """Return which of the given commands can interrupt or harm volumes that the checks did not create."""
    return [name for name in HARMFUL if getattr(given, name)]


def storage(given: StorageFile, settings: Config, connect: Connect) -> Storage:
    """Return the Storage for the checks. Raises ConfigError for node ids that the driver cannot read."""
    known = {name: getattr(given, name) for name in given.__struct_fields__}
    instance = settings.instances[0].name
    try:
        known["nodes"] = tuple(map(functools.partial(ids.split_node, instance=instance), given.nodes))
    except NotFound as error:
        raise ConfigError(f"{SECTION}.nodes: {error}") from None
    known |= {name: tuple(map(Path, getattr(given, name))) for name in ("files", "records")}
    return Storage(connect=connect, **known | _hooks(known))


def _hooks(known: dict[str, Any]) -> dict[str, Any]:
    """Return the commands as functions, None for those that are not given. Raises ConfigError.

    Takes out those that are no field of Storage, because they end what another one began.
    """
    host, back, vacate = LocalHost(), _ending(known, "away", "back"), _ending(known, "occupy", "vacate")
    start, rotate_back = _ending(known, "server_pid", "server_start"), _ending(known, "rotate", "rotate_back")
    lengthen = _ending(known, "shorten", "lengthen")
    pid = known.pop("server_pid")
    found: dict[str, Any] = {
        "server": hooks.server(host, pid, start) if start else None,
        "away": hooks.away(host, known["away"], back) if back else None,
        "occupy": hooks.occupy(host, known["occupy"], vacate) if vacate else None,
        "rotate": hooks.away(host, known["rotate"], rotate_back) if rotate_back else None,
        "shorten": hooks.for_volume(host, known["shorten"], lengthen) if lengthen else None,
    }
    for name in ("damage", "undamage", "effect"):
        found[name] = hooks.of_volume(host, known[name]) if known[name] else None
    found["power_cut"] = hooks.plain(host, known["power_cut"]) if known["power_cut"] else None
    return found


def _ending(known: dict[str, Any], begin: str, end: str) -> tuple[str, ...]:
    """Take out the command that ends what another one begins. Raises ConfigError where one is given alone."""
    words: tuple[str, ...] = known.pop(end)
    if bool(known[begin]) != bool(words):
        given, absent = (end, begin) if words else (begin, end)
        raise ConfigError(f"{SECTION}.{given} is given without {SECTION}.{absent}; give both commands or none")
    return words
