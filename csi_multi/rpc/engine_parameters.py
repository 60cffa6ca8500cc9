"""The class parameters that the node engine has for the volumes of every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..contract.backend import Backend
from ..contract.params import Schema, camel, fields, parse
from ..core.filesystems import AUTO, FS_TYPE
from ..node import encryption_options, mkfs_options, trim_options
from ..node.encryption_options import EncryptionOptions
from ..node.mkfs_options import FilesystemOptions
from ..node.trim_options import TrimOptions

OLD_ENCRYPTION_KEY = "encrypted"  # of ceph-csi, for encryption: luks2
FILESYSTEM_KEYS = frozenset(camel(field.name) for field in fields(FilesystemOptions))
KEYS = FILESYSTEM_KEYS | encryption_options.KEYS | trim_options.KEYS


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """The options that a class gives for every backend; `given` has their keys and values as they were written."""

    filesystem: FilesystemOptions
    encryption: EncryptionOptions
    trim: TrimOptions
    given: Mapping[str, str]

    def context(self, fs_type: str) -> dict[str, str]:
        """Return the volume context: what the node must know for the life of a volume with this filesystem."""
        found = encryption_options.to_context(self.encryption)
        if fs_type not in ("", AUTO):  # a copy is never formatted
            found |= mkfs_options.to_context(self.filesystem)
        if fs_type:
            found |= {FS_TYPE: fs_type} | trim_options.to_context(self.trim)
        return found

    @property
    def overhead(self) -> int:
        """The bytes of a volume that its user does not get."""
        return encryption_options.HEADER if self.encryption.enabled else 0


def take(backend: type[Backend], parameters: dict[str, str]) -> EngineParameters:
    """Remove the engine's keys and return what they say. Raises InvalidArgument."""
    filesystem = _pop(parameters, FILESYSTEM_KEYS)
    encryption = _pop(parameters, encryption_options.KEYS) | _old_encryption(backend, parameters)
    trim = _pop(parameters, trim_options.KEYS)
    found = EngineParameters(
        filesystem=parse(FilesystemOptions, filesystem, "parameters"),
        encryption=parse(EncryptionOptions, encryption, "parameters"),
        trim=parse(TrimOptions, trim, "parameters"),
        given=filesystem | encryption | trim,
    )
    encryption_options.validate(found.encryption, found.filesystem)
    trim_options.validate(found.trim, found.encryption)
    return found


def _pop(parameters: dict[str, str], keys: frozenset[str]) -> dict[str, str]:
    return {key: parameters.pop(key) for key in sorted(keys & parameters.keys())}


class _Encrypted(Schema, frozen=True):
    encrypted: bool = False


def _old_encryption(backend: type[Backend], parameters: dict[str, str]) -> dict[str, str]:
    """Return what `encrypted` means: as in ceph-csi, except to a backend that has such a parameter, as ebs has."""
    key = OLD_ENCRYPTION_KEY
    if key not in parameters or any(field.name == key for field in fields(backend.Parameters)):
        return {}
    wanted = parse(_Encrypted, {key: parameters.pop(key)}, "parameters").encrypted
    return {encryption_options.KEY: "luks2"} if wanted else {}
