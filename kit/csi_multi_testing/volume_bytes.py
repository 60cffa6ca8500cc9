"""The bytes of volumes, for the checks: written and read through the storage's hooks, or through opened devices."""

from __future__ import annotations

import hashlib
import os

from csi_multi.contract import Volume

from .assertions import expect
from .protocol import BackendProtocol, read_from, write_to
from .storage import Storage

BLOCK_SIZE = 4096


class VolumeBytes:
    """The part of a CheckContext that reads and writes."""

    storage: Storage
    client: BackendProtocol

    def no_data_reason(self) -> str:
        """Why the data of volumes cannot be read and written; "" if it can."""
        if self.storage.read and self.storage.write:
            return ""
        if not self.storage.devices:
            return "the data of volumes cannot be read: give Storage.devices, or Storage.read and Storage.write"
        return "" if os.geteuid() == 0 else "only root can open devices"

    def write(self, volume: Volume, data: bytes, offset: int = 0) -> None:
        self.write_pieces(volume, (offset, data))

    def read(self, volume: Volume, length: int = BLOCK_SIZE, offset: int = 0) -> bytes:
        return self.read_pieces(volume, (offset, length))[0]

    def write_pieces(self, volume: Volume, *pieces: tuple[int, bytes]) -> None:
        """Write all pieces with one opening of the device: each opening may cost commands, or seconds."""
        if write := self.storage.write:
            for offset, data in pieces:
                write(volume.handle, offset, data)
            return
        with self.client.device_path(volume.handle) as path:
            for offset, data in pieces:
                write_to(path, offset, data)

    def read_pieces(self, volume: Volume, *places: tuple[int, int]) -> list[bytes]:
        """Return the bytes at each (offset, length), with one opening of the device."""
        if read := self.storage.read:
            return [read(volume.handle, offset, length) for offset, length in places]
        with self.client.device_path(volume.handle, read_only=True) as path:
            return [read_from(path, offset, length) for offset, length in places]

    def fill(self, volume: Volume, seed: str) -> None:
        """Write known bytes at the head and at the tail of a volume."""
        self.write_pieces(volume, (0, pattern(seed)), (volume.size - BLOCK_SIZE, pattern(f"{seed} tail")))

    def expect_filled(self, volume: Volume, seed: str, size: int, what: str) -> None:
        """Require the bytes that `fill` wrote when the volume had this size."""
        head, tail = self.read_pieces(volume, (0, BLOCK_SIZE), (size - BLOCK_SIZE, BLOCK_SIZE))
        expect(head == pattern(seed), f"{what}: the first block differs from what was written")
        expect(tail == pattern(f"{seed} tail"), f"{what}: the last block differs from what was written")


def pattern(seed: str, length: int = BLOCK_SIZE) -> bytes:
    """Return bytes that are different for every seed."""
    return hashlib.shake_128(seed.encode()).digest(length)
