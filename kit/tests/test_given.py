"""Mistakes of an author in telling the kit about the storage, and the checks that see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import Outcome, State
from csi_multi_testing.checks import given
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import AccessMode, Capability, Node


def told(**words: Any) -> Callable[[], Storage]:
    """Return what makes a storage about which this is said."""
    return lambda: memory.storage(**words)


MANY = Capability(mode=AccessMode.MULTI_NODE_MULTI_WRITER)
FACTS = tuple(Node(name=f"n{one}", fact=f"i-{one}", id=f"n{one};kit=i-{one};other=x") for one in range(2))
HALF = (Node(name="n0", id="n0"), Node(name="n1", fact="i-1", id="n1"))
ZONE = {"zone": "a"}


BROKEN = [
    (given.the_given_files_are_where_the_backend_works, told(files=(Path("/nowhere"),)), "but create_volume opened"),
    (given.the_given_files_are_where_the_backend_works, told(files=(Path("pool"),)), "absolute paths are needed"),
    (given.the_given_parameters_are_valid_and_differ, told(other_parameters={"tier": "hdd"}), "would be no conflict"),
    (given.the_given_parameters_are_valid_and_differ, told(other_parameters={"teir": "ssd"}), "did you mean 'tier'"),
    (given.the_given_parameters_are_valid_and_differ, told(mutable={"iops": "many"}), "Storage.mutable: 'iops'"),
    (
        given.the_given_parameters_are_valid_and_differ,
        told(other_mutable={"iops": "100"}),
        "Storage.other_mutable means",
    ),
    (given.the_given_parameters_are_valid_and_differ, told(capability=MANY), "Storage.capability cannot be used"),
    (given.the_given_sizes_fit_each_other, told(size=0), "Storage.size is 0"),
    (given.the_given_sizes_fit_each_other, told(too_large=32 * MIB), "must be possible"),
    (given.the_given_sizes_fit_each_other, told(exact_sizes=(1 << 60,)), "Storage.exact_sizes"),
    (given.what_is_given_is_given_whole, told(foreign=lambda: None, resources=None), "without Storage.resources"),
    (given.what_is_given_is_given_whole, told(foreign_handles=("x",)), "without Storage.foreign"),
    (given.what_is_given_is_given_whole, told(write=None), "Storage.read is given without Storage.write"),
    (given.what_is_given_is_given_whole, told(budgets={"create_volumes": 3}), "did you mean 'create_volume'"),
    (given.what_is_given_is_given_whole, told(resources=lambda: "all"), "a collection of names is needed"),
    (given.the_given_nodes_are_named_as_the_driver_names_them, told(nodes=FACTS[:1]), "two different ones"),
    (given.the_given_nodes_are_named_as_the_driver_names_them, told(nodes=HALF), "read by the driver, means"),
    (given.no_given_place_is_in_reach_and_out_of_it, told(reachable=(ZONE,), unreachable=(ZONE,)), "both have"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_nodes_may_know_facts(judged: Callable[..., Outcome]) -> None:
    assert judged(given.the_given_nodes_are_named_as_the_driver_names_them, told(nodes=FACTS)).state is State.PASSED


@pytest.mark.parametrize("words", [{"files": "/srv"}, {"files": ["/srv"]}, {"calls": [1]}, {"nodes": ("n1",)}])
def test_what_is_no_tuple_of_the_right_things_is_refused(words: Any) -> None:
    with pytest.raises(TypeError, match=r"Storage\.\w+ must be a tuple of"):
        memory.storage(**words)
