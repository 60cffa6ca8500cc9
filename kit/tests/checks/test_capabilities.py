"""Backends that are wrong about how their volumes can be used, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, capabilities
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import AccessMode, Capability, FailedPrecondition, InvalidArgument, Volume, VolumeRequest

from .test_conflicts import Obliging


class Wordless(MemoryBackend):
    """Says nothing where it means that all is well."""

    def unsupported(self, capability: Capability, parameters: Any = None) -> Any:
        return super().unsupported(capability, parameters) or None


class Boasting(MemoryBackend):
    """Refuses block devices for many nodes only, and forgot about access_modes."""

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        return "no block device on many nodes" if capability.block and not capability.mode.single_node else ""


class Contradicting(MemoryBackend):
    """Declares an access mode that it refuses."""

    access_modes = frozenset(AccessMode)

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        return "" if capability.mode.single_node else "volumes are for one node"


class Late(MemoryBackend):
    """Finds out that a use is impossible when it makes the volume."""

    access_modes = frozenset(AccessMode)

    def create_volume(self, request: VolumeRequest) -> Volume:
        if any(not one.mode.single_node for one in request.capabilities):
            raise FailedPrecondition("volumes are for one node")
        return super().create_volume(request)


class Littering(MemoryBackend):
    """Finds it out after it has begun."""

    access_modes = frozenset(AccessMode)

    def create_volume(self, request: VolumeRequest) -> Volume:
        if any(not one.mode.single_node for one in request.capabilities):
            self.storage.put(self.storage.data, self.leaf(request.name), {})
            raise InvalidArgument("volumes are for one node")
        return super().create_volume(request)


class Contextless(MemoryBackend):
    """Keeps of the stamp what it needs itself."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return super().create_volume(replace(request, stamp=replace(request.stamp, context={})))


class BlockOnly(MemoryBackend):
    """Makes block devices only, which is allowed."""

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        return super().unsupported(capability, parameters) or ("" if capability.block else "block devices only")


BROKEN = [
    (capabilities.an_unsupported_use_has_a_reason_in_words, Wordless, "answered None, the contract requires a str"),
    (capabilities.an_unsupported_use_has_a_reason_in_words, Boasting, "but the mode is not in access_modes"),
    (
        capabilities.every_declared_access_mode_has_a_supported_use,
        Contradicting,
        "unsupported() refuses every use with it",
    ),
    (capabilities.an_unsupported_use_is_refused_before_anything_is_created, Late, "raised FailedPrecondition"),
    (
        capabilities.an_unsupported_use_is_refused_before_anything_is_created,
        Littering,
        "refused, but: new on the storage",
    ),
    (capabilities.a_volume_keeps_the_filesystem_type_it_was_created_for, Contextless, "create_volume: the context {}"),
    (
        capabilities.a_block_volume_and_a_filesystem_volume_of_one_name_conflict,
        Obliging,
        "a raw block device exists: succeeded",
    ),
    (
        capabilities.a_block_volume_and_a_filesystem_volume_of_one_name_conflict,
        Contextless,
        "as a filesystem exists: succeeded",
    ),
    (capabilities.another_filesystem_under_a_taken_name_is_a_conflict, Obliging, "xfs instead of ext4: succeeded"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "capabilities"])
def test_a_backend_may_refuse_filesystems(judged: Any, name: str) -> None:
    outcome = judged(CHECKS[name].body, BlockOnly)

    assert outcome.state is not CheckState.FAILED, outcome.text
