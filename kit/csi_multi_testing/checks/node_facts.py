"""Facts of a node: they become part of its node id, which orchestrators keep for years."""

from __future__ import annotations

from typing import Any

from csi_multi.contract import backend as b
from csi_multi.contract import ids
from csi_multi.host.command import LocalHost

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..protocol import Target


@check(b.NodeFacts, target=Target.BACKEND)
def the_fact_of_a_node_fits_into_its_id(t: CheckContext) -> None:
    fact, where = t.backend.node_fact(), t.backend.setting
    good = isinstance(fact, str) and ids.FACT.fullmatch(fact)
    expect(good, f"node_fact gave {fact!r}: it must be one or more letters, digits and -_.:")

    text = ids.join_node(where.node, {where.instance: fact})
    expect(
        len(text) <= ids.MAX_NODE_ID,
        f"node_fact makes a node id of {len(text)} bytes: the maximum is {ids.MAX_NODE_ID}",
    )
    same(ids.split_node(text, where.instance).fact, fact, f"the fact in node id {text!r}")


@check(b.NodeFacts, target=Target.BACKEND)
def the_fact_of_a_node_does_not_change(t: CheckContext) -> None:
    fact = t.backend.node_fact()

    same(t.backend.node_fact(), fact, "node_fact, asked again")
    other: Any = t.storage.connect(LocalHost())
    same(other.node_fact(), fact, "node_fact of another process on the same node")


@check(b.NodeFacts, target=Target.BACKEND)
def max_volumes_is_a_number_or_zero_for_no_limit(t: CheckContext) -> None:
    found = t.backend.max_volumes()

    good = isinstance(found, int) and not isinstance(found, bool) and found >= 0
    expect(good, f"max_volumes gave {found!r}: it must be a whole number, 0 for no limit")
