"""Backends that break the rules of creation, and the checks that see it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from csi_multi.errors import AlreadyExists
from csi_multi.model import Strings, Volume, VolumeRequest
from csi_multi.testing.checks import creation
from csi_multi.testing.memory import MemoryBackend


class Forgetful(MemoryBackend):
    """Makes a second volume for a name that is taken."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists:
            other = replace(request.stamp, name=f"{request.name}-{uuid.uuid4().hex[:4]}")
            return super().create_volume(replace(request, stamp=other))


class Obliging(MemoryBackend):
    """Answers a taken name with what is there, instead of telling the truth."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists:
            return self.find_volume(request.name)


class Hoarder(MemoryBackend):
    """Deletes nothing."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)


BROKEN = [
    (creation.a_volume_can_be_made_found_and_deleted, Hoarder, "get_volume after delete_volume: succeeded"),
    (creation.a_repeated_request_gets_the_same_volume, Forgetful, "create_volume, repeated"),
    (creation.a_taken_name_is_told_as_such, Obliging, "succeeded, the rule wants AlreadyExists"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
