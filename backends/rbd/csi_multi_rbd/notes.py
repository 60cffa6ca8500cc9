"""How far mkfs has come on a volume, written on its image by whoever has a key.

A node without a keyring has the key of the request that opened the device, in memory, until the volume says that it
may hold data. What the request brought is gone with the process: then nothing is written, and nothing is risked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from csi_multi.contract import Blank, FailedPrecondition, OpenRequest, Setting, Strings, Unavailable

from . import keys, stamps
from .config import Config
from .devices import Devices
from .rbd import Rbd
from .shelf import Shelf


class Notes:
    def __init__(self, config: Config, setting: Setting, volumes: Shelf, rbd: Rbd, devices: Devices) -> None:
        self._config = config
        self._setting = setting
        self._volumes = volumes
        self._rbd = rbd
        self._devices = devices
        self._lent: dict[str, Strings] = {}  # by handle

    def lend(self, request: OpenRequest, blank: Blank) -> None:
        """Keep the key of a request that may be followed by notes."""
        if request.secrets and not request.read_only and blank is not Blank.NEVER:
            self._lent[request.handle] = request.secrets
        else:
            self.forget(request.handle)

    def forget(self, handle: str) -> None:
        self._lent.pop(handle, None)

    def formatting(self, handle: str) -> None:
        """Without a key, a mkfs that is killed needs a person. Raises FailedPrecondition after `formatted`."""
        if self._keyless(handle):
            return
        with self._noted(handle) as (rbd, image, before):
            if before == stamps.FORMATTED:
                raise FailedPrecondition(f"volume {handle!r} may hold data: it was formatted before")
            self._devices.note(image, Blank.INTERRUPTED)  # first: should nobody be left who can write the other note
            if before != stamps.FORMATTING:
                rbd.note(image, stamps.FORMAT, stamps.FORMATTING)

    def formatted(self, handle: str) -> None:
        """Raises Unavailable where the image would go on saying that what it holds is nobody's data."""
        if self._keyless(handle):
            self._refuse_interrupted(handle)
        else:
            with self._noted(handle) as (rbd, image, before):
                if before != stamps.FORMATTED:
                    rbd.note(image, stamps.FORMAT, stamps.FORMATTED)
        self._devices.note(self._image(handle), Blank.NEVER)
        self.forget(handle)

    def _keyless(self, handle: str) -> bool:
        return handle not in self._lent and not keys.at_hand(self._config, self._setting)

    @contextmanager
    def _noted(self, handle: str) -> Iterator[tuple[Rbd, str, str]]:
        """The image's name, and what is noted on it."""
        with self._rbd.using(self._lent.get(handle, {})) as rbd:
            found, _ = self._volumes.get(rbd, self._volumes.leaf(handle))
            yield rbd, found.image.name, found.metadata.get(stamps.FORMAT, "")

    def _refuse_interrupted(self, handle: str) -> None:
        device = self._devices.find(self._image(handle))
        if device and device.blank is Blank.INTERRUPTED:
            raise Unavailable(
                f"volume {handle!r}: its image says that formatting has begun, and no key is left here to write that "
                "it is done; unpublish and unstage the volume, and stage it again"
            )

    def _image(self, handle: str) -> str:
        return self._volumes.name(self._volumes.leaf(handle))
