"""csi-sanity over a cluster: the controller of all nodes, and the node side of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from csi_multi_testing import sanity
from sanity_run import ALLOWED_SKIPS, SIZE, answer_all, binary, online_growth

from tests.cluster.namespaces import NAMES, Network

pytestmark = [pytest.mark.sanity, pytest.mark.root]

PUBLISHED = ("ControllerPublishVolume", "ControllerUnpublishVolume", "Controller Publish, UnpublishVolume")
# The suite publishes, because the cluster is one where all volumes are attached. What it still skips of that:
SKIPS = {text: number for text, number in ALLOWED_SKIPS.items() if not text.startswith(PUBLISHED)}
SKIPS |= {"testnodevolumeattachlimit not enabled": 1, "ControllerPublishVolume.readonly field not supported": 1}
FS_TYPE = online_growth()[0]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """The suite names no node when it makes a volume, and then uses it on the first: the others have no room."""
    made = Network(tmp_path, dict.fromkeys(NAMES[1:], 1 << 60), FS_TYPE)
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_every_spec_passes_over_a_cluster(network: Network, tmp_path: Path) -> None:
    endpoints = (network.drivers[NAMES[0]].endpoint, network.drivers["controller"].endpoint)

    report = sanity.run(binary(), tmp_path, endpoints, access="mount", size=SIZE[FS_TYPE])

    answer_all(report, SKIPS)
    assert [network.drivers[name].stop() for name in ("controller", *NAMES)] == [0, 0, 0, 0]
    assert not [file for node in NAMES for file in network.storage(node).glob("volumes/*")]
