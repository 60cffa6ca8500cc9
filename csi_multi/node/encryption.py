"""Encrypted volumes: a mapper of LUKS2 is opened over the backend's device, and the engine uses that in its place.

A backend knows nothing of it. The volume context says that a volume is encrypted; the mapper's name leads from the
volume to the mapper. A header is made only on a device that is proven blank, by the rules for a filesystem, and is the
first thing that is written. What is behind the mapper is noise at first, so it is judged by the notes alone: until the
volume was used for the first time it counts as an interrupted mkfs.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass

from ..contract import ids
from ..contract.backend import Backend, Expand, NodeLocal
from ..contract.errors import FailedPrecondition, InvalidArgument
from ..contract.machine import Host
from ..contract.model import NO_SECRETS, Blank, Device, OpenRequest, Strings
from ..host import sysfs
from . import blank_check, encryption_options, format, luks
from .encryption_options import EncryptionOptions

log = logging.getLogger(__name__)

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
        below = self.backend.open_device(request)
        if not options.enabled:
            self._refuse_in_clear(request, below)
            return below
        luks.require_device_mapper(self._host)
        passphrases = Passphrases.of(request.handle, request.secrets)
        name = self._name(request.handle)
        if (number := luks.open_number(name)) and not luks.is_over(number, below):
            luks.close_device(self._host, name)  # of a device that is gone
            number = ""
        if not number:
            self._unlock(request, below, options, passphrases)
        return self._mapper(request.handle, below)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        below = self.backend.find_device(handle, secrets=secrets)
        return self._mapper(handle, below) if luks.open_number(self._name(handle)) else below

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

    def _mapper(self, handle: str, below: Device | None) -> Device:
        """Return the open mapper as the volume's device."""
        name = self._name(handle)
        number = luks.open_number(name)
        used = below is None or below.blank is Blank.NEVER
        return Device(
            path=luks.mapper_path(name),
            number=number,
            proof={"dm/name": name, "dm/uuid": sysfs.attribute(number, "dm/uuid") or ""},
            blank=Blank.NEVER if used else Blank.INTERRUPTED,
            read_only=sysfs.read_only(number),
        )

    def _unlock(self, request: OpenRequest, below: Device, options: EncryptionOptions, keys: Passphrases) -> None:
        """Open the mapper. A device that was never used gets a new header first, also in place of an earlier one:
        a cryptsetup that was killed may have left one that no passphrase opens."""
        if below.blank is Blank.NEVER:
            self._require_header(request.handle, below)
            self._open(request, below, options, keys)
            return
        self._format(request, below, options, keys.current)
        self._open(request, below, options, keys)
        blank_check.wipe_ends(self._mapper(request.handle, below))  # so that no noise looks like a signature

    def _require_header(self, handle: str, below: Device) -> None:
        if not luks.has_header(self._host, below):
            raise FailedPrecondition(
                f"volume {handle!r} is encrypted, and both copies of the LUKS2 header on {below.path} are damaged or "
                "missing; nothing was changed; put back a copy made with cryptsetup luksHeaderBackup"
            )

    def _open(self, request: OpenRequest, below: Device, options: EncryptionOptions, keys: Passphrases) -> None:
        name, host = self._name(request.handle), self._host
        try:
            luks.open_device(host, below, name, options, keys.current, read_only=request.read_only)
        except luks.WrongPassphrase:
            if not keys.previous or not luks.opens(host, below, keys.previous):
                raise
            if not request.read_only:
                luks.add_passphrase(host, below, keys.previous, keys.current, options)
            key = keys.previous if request.read_only else keys.current
            luks.open_device(host, below, name, options, key, read_only=request.read_only)
        if keys.previous not in ("", keys.current) and not request.read_only:
            luks.remove_passphrase(host, below, keys.previous)

    def _format(self, request: OpenRequest, below: Device, options: EncryptionOptions, passphrase: str) -> None:
        handle, secrets = request.handle, request.secrets
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


def mapper_name(driver: str, volume_id: str) -> str:
    """Return the name of a volume's mapper, which has at most 127 characters (DM_NAME_LEN)."""
    digest = hashlib.sha256(f"{driver} {volume_id}".encode()).hexdigest()[:16]
    return f"csi-multi-{re.sub('[^A-Za-z0-9_.-]', '-', volume_id)[-80:]}-{digest}"
