"""Backends that work in whole MiB, and the checks that find it."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import odd_sizes
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import MIB

from csi_multi.contract import ExpandRequest, Expansion, SizeRange, Volume, VolumeRequest


class WholeChunks(MemoryBackend):
    """Copies size // MiB chunks."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        if request.source:
            self.cut(made.handle, made.size)
        return made

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        before = self.get_volume(request.handle).size
        done = super().expand_volume(request)
        self.cut(request.handle, before)
        return done

    def cut(self, handle: str, size: int) -> None:
        end, blocks = size // MIB * MIB, self.storage.data.get(handle, {})
        self.storage.data[handle] = {at: block for at, block in blocks.items() if at < end}


class Generous(MemoryBackend):
    """Copies are whole MiB, whatever the limit."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        if request.source:
            size = -(-max(default, request.size.required) // MIB) * MIB
            request = memory.replace(request, size=SizeRange(required=size))
        return super()._put(request, default)


BROKEN = [
    (odd_sizes.a_clone_of_an_odd_range_of_sizes_is_in_it_or_refused, Generous, "clone_volume with a required size of"),
    (
        odd_sizes.a_restored_volume_of_an_odd_range_of_sizes_is_in_it_or_refused,
        Generous,
        "and a limit of 16777217: the copy has 17825792 bytes",
    ),
    (odd_sizes.a_clone_of_an_odd_size_is_complete, WholeChunks, "clone_volume of 16781312 bytes, the copy: the last"),
    (
        odd_sizes.a_restored_volume_of_an_odd_size_is_complete,
        WholeChunks,
        "restore_volume of 16781312 bytes, the copy: the last block",
    ),
    (odd_sizes.an_expansion_from_an_odd_size_to_another_keeps_all_data, WholeChunks, "bytes: the last block differs"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


class WholeOnly(MemoryBackend):
    """Creates multiples of a MiB. Correct."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        size = request.size.choose(granularity=MIB, minimum=default if request.source else MIB, default=default)
        return super()._put(memory.replace(request, size=SizeRange(required=size)), default)


def test_a_storage_with_whole_sizes_only_is_skipped(judged: Any) -> None:
    outcome = judged(odd_sizes.a_clone_of_an_odd_size_is_complete, WholeOnly)

    assert outcome.state is CheckState.SKIPPED, outcome.text
