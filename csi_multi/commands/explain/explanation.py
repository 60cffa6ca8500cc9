"""What is told of one StorageClass, as values: explain/tell.py prints them for people, --json for programs."""

from __future__ import annotations

import msgspec


class ExplainedParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it counts, given or by default."""

    key: str
    value: str  # "" where nothing is set
    given: bool
    meaning: str


class ExplainedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command or an API call, and whether it changes something: then it was not done."""

    words: tuple[str, ...]
    why: str
    changes: bool


class ExplainedFilesystem(msgspec.Struct, frozen=True, kw_only=True):
    """What the node makes of the device. Without a type it is handed on as it is."""

    type: str
    why: str
    formats: str  # whether, and when
    mkfs: tuple[str, ...] = ()
    mount_flags: tuple[str, ...] = ()


class Explanation(msgspec.Struct, kw_only=True):
    """Texts are for people. `refused`: a creation would fail with it, "" if not; `not_asked`: why no storage was."""

    storage_class: str
    where: str  # file and line
    instance: str = ""
    kind: str = ""
    chosen: str = ""  # why this instance
    volume: str = ""  # name of the PersistentVolume
    volume_handle: str = ""
    asked_bytes: int = 0
    bytes: int = 0
    size: str = ""
    places: tuple[str, ...] = ()
    placed: str = ""  # why there
    parameters: tuple[ExplainedParameter, ...] = ()
    filesystem: ExplainedFilesystem | None = None
    commands: tuple[ExplainedCommand, ...] = ()
    goes_on: str = ""  # what the commands above do not show
    assumed: tuple[str, ...] = ()
    not_asked: str = ""
    warnings: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    refused: str = ""
