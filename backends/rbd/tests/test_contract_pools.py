"""The kit on an instance with two pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from csi_multi_rbd.config import Config
from csi_multi_rbd.pool_rules import OtherPool

from .test_contract import storage
from .test_pool import other, two_pools

if TYPE_CHECKING:
    from .ceph import Cluster

__all__ = ["other", "storage", "two_pools"]


@pytest.fixture
def config(config: Config, other: Cluster) -> Config:
    pools = {other.pool: OtherPool(topology={"zone": "b"}, nodes=("b-*",))}
    return msgspec.structs.replace(config, topology={"zone": "a"}, pools=pools)


def test_contract(csi_contract: Callable[[], None]) -> None:
    csi_contract()
