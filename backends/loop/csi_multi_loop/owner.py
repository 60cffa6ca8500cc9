"""Which instance a directory belongs to: <directory>/owner.json, written on first use.

An owner is an instance of a driver on a node, and not a process: the controller part and the node part on one machine,
or the old and the new process of an update, are the same owner. Another node is another owner, because two nodes with
one directory (NFS) would mount one image at the same time. The file also marks the directory: where a process has seen
it and does not see it any more, the disk is gone, and not the volumes.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from csi_multi.contract import Setting, Unavailable

from .client import InvalidLabelFile, read_label

FILE = "owner.json"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    driver: str
    cluster: str
    instance: str
    node: str = ""  # in files from before it was written; then it counts as the node that asks

    def __str__(self) -> str:
        return f"instance {self.instance!r} of driver {self.driver!r} in cluster {self.cluster!r} on node {self.node!r}"


class OwnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file. `token` is random, and distinguishes this directory from any other at its path."""

    owner: Owner
    token: str


def owner_of(setting: Setting) -> Owner:
    return Owner(driver=setting.driver, cluster=setting.cluster, instance=setting.instance, node=setting.node)


def new_record(owner: Owner) -> bytes:
    record = OwnerRecord(owner=owner, token=secrets.token_hex(8))
    return msgspec.json.format(msgspec.json.encode(record))


def token_of(directory: Path, data: bytes, own: Owner) -> str:
    """Return the token of a directory with this record. Raises Unavailable when it belongs to another owner."""
    try:
        record = msgspec.json.decode(data, type=OwnerRecord)
    except msgspec.DecodeError as error:
        raise Unavailable(
            f"{directory / FILE} is damaged: {error}; restore it from a backup, or remove it when no other instance "
            "or driver uses the directory"
        ) from None
    owner = record.owner if record.owner.node else msgspec.structs.replace(record.owner, node=own.node)
    if owner != own:
        raise Unavailable(
            f"{directory} belongs to {owner}, and not to {own}; give each its own directory, or remove "
            f"{directory / FILE} when the first does not use it any more"
        )
    return record.token


def has_token(directory: int, token: str) -> bool:
    """Whether an open directory has an owner file with this token, or a damaged one. Raises OSError."""
    try:
        return msgspec.json.decode(read_label(FILE, directory), type=OwnerRecord).token == token
    except FileNotFoundError:
        return False
    except (InvalidLabelFile, msgspec.DecodeError):
        return True
