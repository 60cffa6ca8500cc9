"""RPCs for what is on a node go to that node, and its answer is the answer."""

from __future__ import annotations

from typing import Any

import grpc

Code = grpc.StatusCode
GIB = 1 << 30


def test_a_volume_is_made_on_the_node_that_the_topology_names(cluster: Any) -> None:
    volume = cluster.create("v", nodes=["node-2"])

    assert volume.volume_id == "disk/node-2/v"
    assert [one.volumes for one in cluster.machines.values()] == [[], ["v"], []]
