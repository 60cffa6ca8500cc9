"""How far mkfs has come on a volume: recorded on its image, by a process that has a key.

A node without a keyring keeps the key of the request that opened the device in memory until the volume is recorded as
formatted. When the process ends before, the key is lost: then nothing is recorded, and no data is at risk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from csi_multi.contract import Blank, FailedPrecondition, OpenRequest, Setting, Strings, Unavailable

from . import labels
from .client import Client
from .config import Config
from .connection import keyring_available
from .devices import DeviceManager
from .images import OwnedImages
from .resources import Image

MOST_OBJECTS = 2048  # that are looked at one by one, within about a second


class FormatState:
    def __init__(
        self, config: Config, setting: Setting, volumes: OwnedImages, client: Client, devices: DeviceManager
    ) -> None:
        self._config = config
        self._setting = setting
        self._volumes = volumes
        self._client = client
        self._devices = devices
        self._secrets: dict[str, Strings] = {}  # by handle

    def remember_key(self, request: OpenRequest, blank: Blank) -> None:
        """Keep the key of a request after which the volume may be formatted."""
        if request.secrets and not request.read_only and blank is not Blank.NEVER:
            self._secrets[request.handle] = request.secrets
        else:
            self.forget_key(request.handle)

    def forget_key(self, handle: str) -> None:
        self._secrets.pop(handle, None)

    def formatting(self, handle: str) -> None:
        """Record that mkfs begins. Without a key nothing is recorded: an operator has to clean up after a killed mkfs.

        Raises FailedPrecondition after `formatted`.
        """
        if self._without_key(handle):
            return
        with self._recorded(handle) as (client, image, before):
            if before == labels.FORMATTED:
                raise FailedPrecondition(
                    f"volume {handle!r} may hold data and must not be formatted; use it with its filesystem, or create "
                    "a new volume"
                )
            # first, since it needs no key: the other record may fail
            self._devices.set_blank(image.name, Blank.INTERRUPTED)
            if before != labels.FORMATTING:
                client.set_metadata(image.name, labels.FORMAT, labels.FORMATTING)

    def formatted(self, handle: str) -> None:
        """Record that the volume may hold data. Raises Unavailable where the image would still say that it does not."""
        if self._without_key(handle):
            self._refuse_interrupted(handle)
        else:
            with self._recorded(handle) as (client, image, before):
                if before != labels.FORMATTED:
                    client.set_metadata(image.name, labels.FORMAT, labels.FORMATTED)
        self._devices.set_blank(self._image(handle), Blank.NEVER)
        self.forget_key(handle)

    def has_data(self, handle: str) -> bool | None:
        """Return whether the image has objects of its own or a parent's; None without a key, and where only a look at
        very many objects would tell.
        """
        if self._without_key(handle):
            return None
        with self._recorded(handle) as (client, image, _):
            if image.parent:
                return True
            mapped = "fast-diff" in image.features and not image.flags
            if not mapped and image.size > MOST_OBJECTS * (image.object_size or labels.SMALLEST):
                return None
            return client.used_bytes(image.name, exact=not mapped) > 0

    def _without_key(self, handle: str) -> bool:
        return handle not in self._secrets and not keyring_available(self._config, self._setting)

    @contextmanager
    def _recorded(self, handle: str) -> Iterator[tuple[Client, Image, str]]:
        """Yield a client with a key, the image, and the state that is recorded on it."""
        with self._client.as_user(self._secrets.get(handle, {})) as client:
            image, _, metadata = self._volumes.get_metadata(client, self._volumes.leaf(handle))
            yield client, image, metadata.get(labels.FORMAT, "")

    def _refuse_interrupted(self, handle: str) -> None:
        device = self._devices.find(self._image(handle))
        if device and device.blank is Blank.INTERRUPTED:
            raise Unavailable(
                f"volume {handle!r}: formatting began according to its image, and this node has no key to record that "
                "it is done; unpublish and unstage the volume, and stage it again"
            )

    def _image(self, handle: str) -> str:
        return self._volumes.name(self._volumes.leaf(handle))
