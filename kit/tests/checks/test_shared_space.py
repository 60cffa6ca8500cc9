"""Backends that promise the space which a copy shares with its source once, and the checks that find it."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_testing.checks import shared_space
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Volume


class CountsOnce(MemoryBackend):
    """What a snapshot holds costs nothing."""

    def _free(self) -> int:
        free = int(self.config.capacity) - sum(one.size for one in self.storage.volumes.values()) - self.storage.others
        return max(0, free)


class CountsOnlyOriginals(MemoryBackend):
    """A clone costs nothing."""

    def _free(self) -> int:
        def counts(one: Volume) -> bool:
            return one.stamp.source is None

        sizes = (one.size for one in self.storage.volumes.values() if counts(one))
        return max(0, int(self.config.capacity) - sum(sizes) - self.storage.others)


BROKEN = [
    (
        shared_space.what_a_snapshot_shares_with_its_volume_is_promised_to_both,
        CountsOnce,
        "fell by [0, 0, 0] bytes at create_snapshot of a volume with",
    ),
    (
        shared_space.what_a_clone_shares_with_its_source_is_promised_to_both,
        CountsOnlyOriginals,
        "fell by [0, 0, 0] bytes at clone_volume of a volume with",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
