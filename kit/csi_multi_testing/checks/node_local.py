"""Node-local volumes: a handle names its node, and other nodes refuse it."""

from __future__ import annotations

from typing import Any

from csi_multi.contract import NotFound, OpenRequest, ResourceExhausted, TopologyRequirement, WrongNode
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..counting import expect_nothing_left
from ..protocol import Target
from .topology import expect_same_segments

MALFORMED_HANDLES = ("?", "?/?", "no handle \N{SNOWMAN}", "/", "//")


@check(b.NodeLocal)
def the_node_and_its_volumes_have_the_same_segments(t: CheckContext) -> None:
    expect_same_segments(t)


@check(b.NodeLocal, target=Target.BACKEND)
def a_handle_starts_with_the_name_of_its_node(t: CheckContext) -> None:
    node, made = t.backend.setting.node, t.volume()
    handles = {"volume": made.handle}
    if b.Snapshots in t.features:
        handles["snapshot"] = t.snapshot(made).handle

    for kind, handle in handles.items():
        expect(
            handle.startswith(node), f"the handle of a {kind}, {handle!r}, does not start with the node's name {node!r}"
        )
    same(t.backend.node_of(made.handle), node, f"node_of({made.handle!r})")


@check(b.NodeLocal, target=Target.BACKEND)
def the_node_of_a_handle_is_known_without_a_call_to_the_storage(t: CheckContext) -> None:
    made = t.volume()
    elsewhere = handles_of_other_nodes(t, made.handle)[0]
    with t.injector.inject(0):
        t.backend.node_of(made.handle)
        same(t.backend.node_of(elsewhere), f"{t.backend.setting.node}0", f"node_of({elsewhere!r})")
    calls = t.injector.calls
    expect(not calls, f"node_of made calls, but the handle alone must be enough: {', '.join(calls[:3])}")


@check(b.NodeLocal, target=Target.BACKEND)
def a_handle_without_a_node_is_not_found(t: CheckContext) -> None:
    for handle in MALFORMED_HANDLES:
        for method in ("node_of", "get_volume"):
            with t.refused(NotFound, what=f"{method}({handle!r})"):
                getattr(t.backend, method)(handle)


@check(b.NodeLocal)
def a_volume_is_created_on_this_node_or_not_at_all(t: CheckContext) -> None:
    here = t.client.segments()
    elsewhere = {**here, "node": f"{here['node']}0"}
    made = t.volume(topology=TopologyRequirement(requisite=(elsewhere, here), preferred=(elsewhere,)))
    same(
        [place["node"] for place in t.client.places(made)],
        [here["node"]],
        "the node of a volume for this or another node",
    )

    before = t.resources()
    with t.refused(ResourceExhausted, what=f"create_volume for another node, {elsewhere}"):
        t.volume(topology=TopologyRequirement(requisite=(elsewhere,)))
    expect_nothing_left(t, before, "a refused creation for another node")


def handles_of_other_nodes(t: CheckContext, handle: str) -> list[str]:
    """Return handles of two other nodes, one with a name that starts with this node's name."""
    node = t.backend.setting.node
    expect(handle.startswith(node), f"handle {handle!r} does not start with the node's name {node!r}")
    return [f"{name}{handle.removeprefix(node)}" for name in (f"{node}0", "elsewhere")]


@check(b.NodeLocal, target=Target.BACKEND)
def a_handle_of_another_node_is_refused(t: CheckContext) -> None:
    made = t.volume()
    if has_data := not t.no_data_reason():
        t.fill(made, "here")
    secrets = t.storage.secrets
    for handle in handles_of_other_nodes(t, made.handle):
        calls: list[tuple[str, tuple[Any, ...]]] = [("get_volume", (handle,)), ("delete_volume", (handle, secrets))]
        if t.storage.devices:
            calls.append(("open_device", (OpenRequest(handle=handle, secrets=secrets),)))
        for method, words in calls:
            with t.refused(WrongNode, what=f"{method}({handle!r}), a handle of another node"):
                getattr(t.backend, method)(*words)
    same(t.client.get(made.handle), made, "get_volume after calls for volumes of other nodes")
    if has_data:
        t.expect_filled(made, "here", made.size, "a volume after calls for volumes of other nodes")
