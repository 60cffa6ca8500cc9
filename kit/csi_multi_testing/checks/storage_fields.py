"""Whether the fields of Storage are consistent: a wrong Storage makes other checks fail for the wrong reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from csi_multi.contract import InvalidArgument, NotFound, ids, unknown
from csi_multi.contract import backend as b
from csi_multi.contract.params import parse
from csi_multi.loading.backend_proxy import contract_methods

from ..assertions import CheckFailed, expect
from ..call_counter import CallCounter
from ..check import check
from ..context import CheckContext
from ..fault_injection import Call
from ..fault_plan import PATHS
from ..operations.importing import imports
from ..protocol import BLOCK, Target
from .devices import open_device

LEAST_SNAPSHOTS = 8  # of one volume: of all names in one check, or with one between each of several writes


def parsed(t: CheckContext, name: str) -> Any:
    """Return the class parameters of Storage as the backend gets them."""
    schema = type(t.backend).Parameters if name.endswith("parameters") else type(t.backend).MutableParameters
    values: Mapping[str, str] = getattr(t.storage, name) or {}
    try:
        return parse(schema, values, f"Storage.{name}")
    except InvalidArgument as error:
        raise CheckFailed(str(error)) from error


@check(target=Target.BACKEND)
def the_parameters_are_valid_and_differ(t: CheckContext) -> None:
    for name in ("parameters", "mutable"):
        expect(
            getattr(t.storage, f"other_{name}") is None or parsed(t, name) != parsed(t, f"other_{name}"),
            f"Storage.other_{name} means the same as Storage.{name}, so it is no conflict; give different ones",
        )
        parsed(t, name)
    use = t.storage.capability or BLOCK
    reason = t.backend.unsupported(use, parsed(t, "parameters"))
    expect(not reason, f"Storage.capability cannot be used with Storage.parameters: {reason}")


@check(target=Target.BACKEND)
def the_sizes_are_consistent(t: CheckContext) -> None:
    size, least = t.storage.size, 3 * t.storage.size
    expect(size > 0, f"Storage.size is {size}; it must be a positive number of bytes")
    expect(
        t.storage.too_large > least,
        f"Storage.too_large is {t.storage.too_large}, but three times Storage.size, {least} bytes, must be possible",
    )
    most = t.storage.snapshots
    expect(
        most is None or most >= LEAST_SNAPSHOTS, f"Storage.snapshots is {most}; checks need {LEAST_SNAPSHOTS} of one"
    )
    for exact in t.storage.exact_sizes:
        expect(0 < exact < t.storage.too_large, f"Storage.exact_sizes: {exact} is not between 0 and Storage.too_large")


@check(target=Target.BACKEND)
def fields_that_need_each_other_are_given_together(t: CheckContext) -> None:
    pairs = {"foreign": "resources", "foreign_handles": "foreign", "read": "write", "write": "read"}
    pairs |= {"damage": "undamage", "undamage": "damage", "also_damage": "damage"}
    for name, needed in pairs.items():
        text = f"Storage.{name} is given without Storage.{needed}, and needs it"
        expect(not getattr(t.storage, name) or getattr(t.storage, needed), text)
    for method in t.storage.budgets:
        known = contract_methods(type(t.backend))
        expect(method in known, unknown("Storage.budgets", method, known, "method"))
    if t.storage.resources:
        found = t.storage.resources()
        good = not isinstance(found, str) and all(isinstance(one, str) for one in found)
        expect(good, f"Storage.resources gave {type(found).__name__}: it must return a collection of str")


@check(needs=("files",), target=Target.BACKEND)
def the_files_are_where_the_backend_works(t: CheckContext) -> None:
    """Otherwise no crash between two calls on files would be tested."""
    for path in t.storage.files:
        expect(path.is_absolute(), f"Storage.files has {path}: give absolute paths")
    with t.injector.inject(0):
        volume = t.volume()
        if t.storage.devices:
            open_device(t, volume)
    recorded = any(call.partition(" ")[0] in PATHS for call in t.injector.calls)
    names = ", ".join(map(str, t.storage.files))
    expect(
        recorded,
        f"Storage.files is {names}, but create_volume and open_device opened, created and removed no file below it",
    )


@check(needs=("calls",), target=Target.BACKEND)
def every_function_that_is_named_is_called(t: CheckContext) -> None:
    """Otherwise no fault is injected there: the owner is not where Python looks the function up."""
    CallCounter(t).run_lifecycle()
    t.client.restart()
    if b.Import in t.features and t.storage.importable:
        with imports(t) as all_imports:
            all_imports.volume()
    uncalled = [describe_call(one) for one in t.storage.calls if not t.injector.was_called(one)]
    expect(
        not uncalled,
        f"Storage.calls has {', '.join(uncalled)}, which no method called in a volume's life: name as `owner` the "
        "module that imported the function, or the class that defines the method, or leave it out",
    )


def describe_call(call: Call) -> str:
    """Return the name of a function with its owner's."""
    owner = getattr(call.owner, "__qualname__", getattr(call.owner, "__name__", type(call.owner).__name__))
    return f"{owner}.{call.name}"


@check(needs=("nodes",), target=Target.BACKEND)
def the_nodes_have_ids_that_the_driver_can_read(t: CheckContext) -> None:
    instance = t.backend.setting.instance
    expect(len({node.id for node in t.storage.nodes}) > 1, "Storage.nodes: give two different nodes or none")
    for node in t.storage.nodes:
        try:
            read = ids.split_node(node.id, instance)
        except NotFound as error:
            raise CheckFailed(f"Storage.nodes: {error}") from error
        expect(read == node, f"Storage.nodes has {node}, but the driver reads its id as {read}")


@check(needs=("reachable", "unreachable"), target=Target.BACKEND)
def no_segments_are_both_reachable_and_unreachable(t: CheckContext) -> None:
    both = [place for place in t.storage.reachable if place in t.storage.unreachable]
    expect(not both, f"Storage.reachable and Storage.unreachable both contain {both}")
