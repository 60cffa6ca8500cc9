"""Lists of volumes, page by page, in the order of their names."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from csi_multi.contract import FailedPrecondition, NotFound, Page, PageRequest, Volume, paged

from .client import Client
from .errors import ImageLost
from .volumes import VolumeManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    client: Client
    volume_manager: VolumeManager

    def volumes(self, page: PageRequest) -> Page[Volume]:
        def load(leaf: str) -> Volume | None:
            with suppress(NotFound, FailedPrecondition, ImageLost):  # removed meanwhile, foreign, or without data
                return self.volume_manager.to_volume(leaf)
            return None

        with self.client.connected("listing volumes"):
            return paged(self.client.leaves(), page, load)
