"""The nodes of an attached volume: the same in every answer; several nodes if the access mode allows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from csi_multi.contract import AccessMode, NotFound, Volume
from csi_multi.contract import backend as b

from ..assertions import same
from ..check import check
from ..context import CheckContext
from ..protocol import Target
from .attach import OTHER_FACT, attach, single_node_use, two_nodes


def reported_nodes(t: CheckContext, volume: Volume) -> list[tuple[str, tuple[str, ...]]]:
    """Return the published nodes of a volume from every method that reports them."""
    found = [("get_volume", t.client.get(volume.handle).published_nodes)]
    if b.ListVolumes in t.features:
        cursor, more = "", True
        while more:
            page = t.client.list_volumes(cursor)
            found += [("list_volumes", one.published_nodes) for one in page.items if one.handle == volume.handle]
            cursor, more = page.cursor, bool(page.cursor)
    return found


@check(b.PublishedNodes, needs=("nodes",))
def the_nodes_of_an_attached_volume_are_reported(t: CheckContext) -> None:
    one, other = two_nodes(t)
    volume = t.volume()

    def expect_published(wanted: tuple[str, ...], when: str) -> None:
        for method, nodes in reported_nodes(t, volume):
            same(nodes, wanted, f"published_nodes from {method}, {when}")

    expect_published((), "before the first attach")
    for node in (one, other):
        attach(t, volume, node)
        expect_published((node.id,), f"attached to {node.id!r}")
        t.client.restart()
        expect_published((node.id,), f"attached to {node.id!r}, after a restart")
        t.client.detach(volume.handle, None)
        expect_published((), "detached")


@check(b.PublishedNodes, needs=("nodes",))
def published_nodes_have_the_facts_that_other_instances_need(t: CheckContext) -> None:
    """Beside other instances a node's id is more than its name, and it changes when their facts do."""
    node, volume = t.storage.nodes[0], t.volume()
    for known in (replace(node, id=f"{node.id};{OTHER_FACT}"), node):
        attach(t, volume, known)
        for method, nodes in reported_nodes(t, volume):
            same(
                nodes, (known.id,), f"published_nodes from {method}, attached to node {known.name!r}, whose id is that"
            )
        t.client.detach(volume.handle, known)


@check(b.Attach, needs=("nodes",), target=Target.BACKEND)
def a_multi_node_volume_can_be_attached_to_several_nodes(t: CheckContext) -> None:
    nodes = two_nodes(t)
    modes = [mode for mode in AccessMode if not mode.single_node]
    parameters: Any = t.in_process.request(t.spec()).parameters
    for mode in modes:
        many = replace(single_node_use(t), mode=mode)
        if t.backend.unsupported(many, parameters):
            continue
        volume = t.volume(capability=many)
        for node in nodes:
            t.attach(volume, node, capability=many, read_only=mode.read_only and b.ReadOnlyAttach in t.features)
        t.client.detach(volume.handle, nodes[0])
        if b.PublishedNodes in t.features:
            same(
                t.client.get(volume.handle).published_nodes,
                (nodes[1].id,),
                f"published_nodes, {mode.name}, one detached",
            )
        t.client.detach(volume.handle, None)
        with t.refused(NotFound, what=f"detach, {mode.name}, after it was detached from all nodes"):
            t.backend.detach(volume.handle, nodes[1], t.storage.secrets)
