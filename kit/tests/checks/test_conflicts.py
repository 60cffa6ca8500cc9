"""Backends that serve another request under a taken name, or harm what is there, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import conflicts
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import AlreadyExists, ExpandRequest, Volume, VolumeRequest

from .test_creation import Sourceless


class Obliging(MemoryBackend):
    """Answers a taken name with what is there, whatever was asked."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        try:
            return super()._put(request, default)
        except AlreadyExists:
            return self.find_volume(request.name)


class Growing(MemoryBackend):
    """Makes what is there as large as is asked now."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists:
            there = self.find_volume(request.name)
            self.expand_volume(ExpandRequest(handle=there.handle, size=replace(request.size, limit=0)))
            raise


class Replacing(MemoryBackend):
    """Makes room for the new volume."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists:
            self.delete_volume(self.leaf(request.name), {})
            return super().create_volume(request)


class RollingBack(MemoryBackend):
    """Cleans up after every failure, as if it had made what is there."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists:
            self.delete_volume(self.leaf(request.name), {})
            raise


class Wiping(MemoryBackend):
    """Prepares the bytes before it knows that the name is free."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.storage.data.get(self.leaf(request.name), {}).clear()
        return super().create_volume(request)


class Undigested(MemoryBackend):
    """Stores no digest of the parameters."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return super().create_volume(replace(request, stamp=replace(request.stamp, digest="")))


class Modifying(MemoryBackend):
    """Takes the parameters of a repeated request over, the stamp too."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists:
            there = self.find_volume(request.name)
            self.storage.put(self.storage.volumes, there.handle, replace(there, stamp=request.stamp))
            return self.find_volume(request.name)


BROKEN = [
    (conflicts.a_larger_size_under_a_taken_name_is_a_conflict, Obliging, "one byte more than it has: succeeded"),
    (conflicts.a_larger_size_under_a_taken_name_is_a_conflict, Growing, "one byte more than it has: succeeded"),
    (conflicts.a_larger_size_under_a_taken_name_is_a_conflict, RollingBack, "but find_volume then found nothing"),
    (conflicts.a_smaller_limit_under_a_taken_name_is_a_conflict, Replacing, "one byte below its size: succeeded"),
    (conflicts.a_conflict_leaves_the_data_unchanged, Wiping, "the first block differs"),
    (conflicts.other_parameters_under_a_taken_name_are_a_conflict, Modifying, "with other parameters: succeeded"),
    (
        conflicts.other_parameters_under_a_taken_name_are_a_conflict,
        Undigested,
        "again after a conflict: raised Already",
    ),
    (conflicts.other_mutable_parameters_under_a_taken_name_are_a_conflict, Modifying, "mutable parameters: succeeded"),
    (conflicts.another_snapshot_under_a_taken_name_is_a_conflict, Obliging, "where an empty volume exists: succeeded"),
    (conflicts.another_snapshot_under_a_taken_name_is_a_conflict, Sourceless, "from a snapshot exists: succeeded"),
    (
        conflicts.another_volume_as_source_under_a_taken_name_is_a_conflict,
        Obliging,
        "an empty volume exists: succeeded",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
