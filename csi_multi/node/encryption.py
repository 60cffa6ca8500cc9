"""Encrypted volumes: a mapper of LUKS2 is opened over the backend's device, and the engine uses that in its place.

A backend knows nothing of it. The volume context says that a volume is encrypted; the mapper's name leads from the
volume to the mapper. A header is made only on a device that is proven blank, by the rules for a filesystem, and is the
first thing that is written. What is behind the mapper is noise at first, so it is judged by the notes alone: until the
volume was used for the first time it counts as an interrupted mkfs.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass

from ..contract import ids
from ..contract.backend import Backend, Expand, NodeLocal
from ..contract.errors import NOT_FINAL, FailedPrecondition, InvalidArgument, StorageError
from ..contract.machine import Host
from ..contract.model import NO_SECRETS, Blank, Device, OpenRequest, Strings
from ..host import sysfs
from . import blank_check, device_mounts, encryption_options, format, luks
from .encryption_options import EncryptionOptions

PASSPHRASES = ("passphrase", "encryptionPassphrase")  # in the node-stage secret; the second as ceph-csi has it
PREVIOUS = "previousPassphrase"


@dataclass(frozen=True, slots=True)
class Passphrases:
    """What the node-stage secret holds."""

    current: str
    previous: str = ""

    @classmethod
    def of(cls, handle: str, secrets: Strings) -> Passphrases:
        """Raises InvalidArgument when there is none, or an empty one."""
        current = next((secrets[key] for key in PASSPHRASES if secrets.get(key)), "")
        if not current:
            raise InvalidArgument(
                f"volume {handle!r} is encrypted, and the request has no passphrase; name a Secret with the key "
                "'passphrase' in the class: csi.storage.k8s.io/node-stage-secret-name and -namespace"
            )
        return cls(current, secrets.get(PREVIOUS, ""))


class EncryptionLayer:
    """The devices of a backend, with a mapper over those of encrypted volumes. It has no state."""

    def __init__(self, host: Host, backend: Backend) -> None:
        self.setting = backend.setting
        self.opens_exclusively = backend.opens_exclusively or isinstance(backend, NodeLocal)
        self.backend = backend
        self._host = host

    def open_device(self, request: OpenRequest) -> Device:
        """Open the backend's device, and the mapper where the volume is encrypted.

        Raises as Backend.open_device does; InvalidArgument, FailedPrecondition for a key or a header that does not fit.
        """
        options = encryption_options.from_context(request.volume_context)
        passphrases = Passphrases.of(request.handle, request.secrets) if options.enabled else None
        below = self.backend.open_device(request)
        try:
            if passphrases is None:
                self._refuse_in_clear(request, below)
                return below
            return self._open_mapper(request, below, options, passphrases)
        except NOT_FINAL:
            raise
        except StorageError:  # after which nobody unstages
            self._close_unused(request, below)
            raise

    def _close_unused(self, request: OpenRequest, below: Device) -> None:
        """Close what this request has opened. A node that is bound does not keep a mapper open, so mounts are asked."""
        with contextlib.suppress(StorageError):
            found = self.find_device(request.handle, request.secrets) or below
            if not device_mounts.list_mounts(found) and not device_mounts.list_mounts(below):
                self.close_device(request.handle, request.secrets)

    def _open_mapper(
        self, request: OpenRequest, below: Device, options: EncryptionOptions, passphrases: Passphrases
    ) -> Device:
        luks.require_device_mapper(self._host)
        name = self._name(request.handle)
        if (number := luks.open_number(name)) and not luks.is_over(number, below):
            luks.close_device(self._host, name)  # of a device that is gone
            number = ""
        if not number:
            self._unlock(request, below, options, passphrases)
            number = luks.open_number(name)
        return _mapper(name, number, below)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        below = self.backend.find_device(handle, secrets=secrets)
        name = self._name(handle)
        number = luks.open_number(name)
        if number and (below is None or luks.is_over(number, below)):
            return _mapper(name, number, below)
        return below  # also where the mapper is over a device that was taken away, and this one came since

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if luks.open_number(self._name(handle)):
            luks.close_device(self._host, self._name(handle))
        self.backend.close_device(handle, secrets=secrets)

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if isinstance(self.backend, Expand):
            self.backend.refresh_device(handle, secrets=secrets)
        if luks.open_number(self._name(handle)):
            luks.resize(self._host, self._name(handle))

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.backend.formatting(handle, secrets=secrets)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.backend.formatted(handle, secrets=secrets)

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return self.backend.has_data(handle, secrets=secrets)

    def _name(self, handle: str) -> str:
        return mapper_name(self.setting.driver, ids.join(self.setting.instance, handle))

    def _unlock(self, request: OpenRequest, below: Device, options: EncryptionOptions, keys: Passphrases) -> None:
        """Open the mapper. A device that was never used gets a new header first, also in place of an earlier one:
        a cryptsetup that was killed may have left one that no passphrase opens."""
        if below.blank is Blank.NEVER:
            self._require_header(request.handle, below)
            self._open(request, below, options, keys)
            return
        self._format(request, below, options, keys.current)
        self._open(request, below, options, keys)
        name = self._name(request.handle)
        blank_check.wipe_ends(_mapper(name, luks.open_number(name), below))  # so that no noise looks like a signature

    def _require_header(self, handle: str, below: Device) -> None:
        if not luks.has_header(self._host, below):
            found = format.signature(self._host, handle, below)
            state = f"it holds {found}, in clear" if found else "both copies of it are damaged or missing"
            advice = "stage it without encryption" if found else "put back a copy made with cryptsetup luksHeaderBackup"
            raise FailedPrecondition(
                f"volume {handle!r} is encrypted by its volume_context, and {below.path} has no LUKS2 header: {state}; "
                f"nothing was changed; {advice}"
            )

    def _open(self, request: OpenRequest, below: Device, options: EncryptionOptions, keys: Passphrases) -> None:
        name, host = self._name(request.handle), self._host
        try:
            luks.open_device(host, below, name, options, keys.current, read_only=request.read_only)
        except luks.WrongPassphrase:
            if not keys.previous or not luks.opens(host, below, keys.previous):
                raise
            changes = not request.read_only and single_node(request)
            if changes:
                luks.add_passphrase(host, below, keys.previous, keys.current, options)
            key = keys.current if changes else keys.previous
            luks.open_device(host, below, name, options, key, read_only=request.read_only)
        if keys.previous not in ("", keys.current) and not request.read_only and single_node(request):
            luks.remove_passphrase(host, below, keys.previous)

    def _format(self, request: OpenRequest, below: Device, options: EncryptionOptions, passphrase: str) -> None:
        handle, secrets = request.handle, request.secrets
        if not single_node(request):
            raise FailedPrecondition(
                f"volume {handle!r} was never used, and is staged in a mode in which several nodes write; two of them "
                "would write a header each, and one would lose its data; stage it once in a mode for one node"
            )
        format.require_blank(self._host, self.backend, handle, below, secrets)
        self.backend.formatting(handle, secrets=secrets)
        luks.format_device(self._host, below, options, passphrase)

    def _refuse_in_clear(self, request: OpenRequest, below: Device) -> None:
        """Raise FailedPrecondition for an encrypted volume whose context does not say so. A filesystem is found out
        by its signature; a raw block device would be handed out, and overwritten."""
        encrypted = luks.open_number(self._name(request.handle)) or (
            request.block and below.blank is Blank.NEVER and luks.is_ours(below)
        )
        if encrypted:
            raise FailedPrecondition(
                f"volume {request.handle!r} is encrypted, and its volume_context does not say so, so it is not staged; "
                "give it the volumeAttributes that CreateVolume returned, with encryption: luks2"
            )


def _mapper(name: str, number: str, below: Device | None) -> Device:
    """Return an open mapper as the volume's device."""
    used = below is None or below.blank is Blank.NEVER
    return Device(
        path=luks.mapper_path(name),
        number=number,
        proof={"dm/name": name, "dm/uuid": sysfs.attribute(number, "dm/uuid") or ""},
        blank=Blank.NEVER if used else Blank.INTERRUPTED,
        read_only=sysfs.read_only(number),
    )


def single_node(request: OpenRequest) -> bool:
    """Whether no other node may open the volume at the same time."""
    return request.capability is not None and request.capability.mode.single_node


def mapper_name(driver: str, volume_id: str) -> str:
    """Return the name of a volume's mapper, which has at most 127 characters (DM_NAME_LEN)."""
    digest = hashlib.sha256(f"{driver} {volume_id}".encode()).hexdigest()[:16]
    return f"csi-multi-{re.sub('[^A-Za-z0-9_.-]', '-', volume_id)[-80:]}-{digest}"
