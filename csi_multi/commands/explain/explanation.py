"""The explanation of one StorageClass, as values: render.py prints them for people, --json for programs."""

from __future__ import annotations

import msgspec


class ExplainedParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A key with its value, given or by default."""

    key: str
    value: str  # "" where nothing is set
    given: bool
    meaning: str


class ExplainedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command or an API call. One that changes something was not done."""

    words: tuple[str, ...]
    why: str
    changes: bool


class ExplainedFilesystem(msgspec.Struct, frozen=True, kw_only=True):
    """What the node does with the device. Without a type it publishes the raw device."""

    type: str
    why: str
    formats: str  # whether and when
    mkfs: tuple[str, ...] = ()
    mount_flags: tuple[str, ...] = ()


class Explanation(msgspec.Struct, kw_only=True):
    """Texts are for people.

    `refused`: the error of a creation, "" if it succeeds. `storage_not_read`: why the storage was not read, "" if
    it was.
    """

    storage_class: str
    where: str  # file and line
    instance: str = ""
    kind: str = ""
    instance_reason: str = ""  # why this instance serves the class
    volume: str = ""  # name of the PersistentVolume
    volume_handle: str = ""
    requested_bytes: int = 0
    bytes: int = 0
    size: str = ""
    places: tuple[str, ...] = ()
    places_reason: str = ""  # why these places
    parameters: tuple[ExplainedParameter, ...] = ()
    filesystem: ExplainedFilesystem | None = None
    commands: tuple[ExplainedCommand, ...] = ()
    not_shown: str = ""  # what the commands do not show
    assumed: tuple[str, ...] = ()
    storage_not_read: str = ""
    warnings: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    refused: str = ""
