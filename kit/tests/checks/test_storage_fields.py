"""Mistakes of an author in telling the kit about the storage, and the checks that see them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import storage_fields
from csi_multi_testing.fault_injection import Call
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import AccessMode, Capability, Node

from .file_backend import OPEN, FileBackend, storage_on


def storage_with(**words: Any) -> Callable[[], Storage]:
    """Return what makes a storage about which this is said."""
    return lambda: memory.storage(**words)


MANY = Capability(mode=AccessMode.MULTI_NODE_MULTI_WRITER)
FACTS = tuple(Node(name=f"n{one}", fact=f"i-{one}", id=f"n{one};kit=i-{one};other=x") for one in range(2))
HALF = (Node(name="n0", id="n0"), Node(name="n1", fact="i-1", id="n1"))
ZONE = {"zone": "a"}


UNUSED = Call(owner=memory.MemoryBackend, name="close")

BROKEN = [
    (
        storage_fields.every_function_that_is_named_is_called,
        storage_with(calls=(UNUSED,)),
        "Storage.calls has MemoryBackend.close, which no method called",
    ),
    (
        storage_fields.the_files_are_where_the_backend_works,
        storage_with(files=(Path("/nowhere"),)),
        "but create_volume and open_device opened",
    ),
    (
        storage_fields.the_files_are_where_the_backend_works,
        storage_with(files=(Path("pool"),)),
        "give absolute paths",
    ),
    (
        storage_fields.the_parameters_are_valid_and_differ,
        storage_with(other_parameters={"tier": "hdd"}),
        "so it is no conflict",
    ),
    (
        storage_fields.the_parameters_are_valid_and_differ,
        storage_with(other_parameters={"teir": "ssd"}),
        "did you mean 'tier'",
    ),
    (
        storage_fields.the_parameters_are_valid_and_differ,
        storage_with(mutable={"iops": "many"}),
        "Storage.mutable: 'iops'",
    ),
    (
        storage_fields.the_parameters_are_valid_and_differ,
        storage_with(other_mutable={"iops": "100"}),
        "Storage.other_mutable means",
    ),
    (
        storage_fields.the_parameters_are_valid_and_differ,
        storage_with(capability=MANY),
        "Storage.capability cannot be used",
    ),
    (storage_fields.the_sizes_are_consistent, storage_with(size=0), "Storage.size is 0"),
    (storage_fields.the_sizes_are_consistent, storage_with(too_large=32 * MIB), "must be possible"),
    (storage_fields.the_sizes_are_consistent, storage_with(snapshots=1), "Storage.snapshots is 1"),
    (storage_fields.the_sizes_are_consistent, storage_with(exact_sizes=(1 << 60,)), "Storage.exact_sizes"),
    (
        storage_fields.fields_that_need_each_other_are_given_together,
        storage_with(foreign=lambda: None, resources=None),
        "without Storage.resources",
    ),
    (
        storage_fields.fields_that_need_each_other_are_given_together,
        storage_with(foreign_handles=("x",)),
        "without Storage.foreign",
    ),
    (
        storage_fields.fields_that_need_each_other_are_given_together,
        storage_with(undamage=None),
        "Storage.damage is given without Storage.undamage",
    ),
    (
        storage_fields.fields_that_need_each_other_are_given_together,
        storage_with(write=None),
        "Storage.read is given without Storage.write",
    ),
    (
        storage_fields.fields_that_need_each_other_are_given_together,
        storage_with(budgets={"create_volumes": 3}),
        "did you mean 'create_volume'",
    ),
    (
        storage_fields.fields_that_need_each_other_are_given_together,
        storage_with(resources=lambda: "all"),
        "it must return a collection of str",
    ),
    (
        storage_fields.the_nodes_have_ids_that_the_driver_can_read,
        storage_with(nodes=FACTS[:1]),
        "give two different nodes",
    ),
    (
        storage_fields.the_nodes_have_ids_that_the_driver_can_read,
        storage_with(nodes=HALF),
        "but the driver reads its id as",
    ),
    (
        storage_fields.no_segments_are_both_reachable_and_unreachable,
        storage_with(reachable=(ZONE,), unreachable=(ZONE,)),
        "both contain",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_nodes_may_know_facts(judged: Callable[..., Outcome]) -> None:
    assert (
        judged(storage_fields.the_nodes_have_ids_that_the_driver_can_read, storage_with(nodes=FACTS)).state
        is CheckState.PASSED
    )


def test_files_of_the_node_alone_may_be_given(judged: Callable[..., Outcome], tmp_path: Path) -> None:
    """A backend whose storage is elsewhere has files only where it opens devices."""
    over_node_files = partial(storage_on, FileBackend, tmp_path, files=(tmp_path / OPEN,))

    outcome = judged(storage_fields.the_files_are_where_the_backend_works, over_node_files)
    assert outcome.state is CheckState.PASSED, outcome.text


@pytest.mark.parametrize("words", [{"files": "/srv"}, {"files": ["/srv"]}, {"calls": [1]}, {"nodes": ("n1",)}])
def test_what_is_no_tuple_of_the_right_things_is_refused(words: Any) -> None:
    with pytest.raises(TypeError, match=r"Storage\.\w+ must be a tuple of"):
        memory.storage(**words)
