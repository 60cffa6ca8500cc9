"""The rules for the pools of an instance: `pools` of its configuration, and ceph-csi's parameter for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from csi_multi.contract import Schema

from . import ceph_rules

_POOL = re.compile(r"[A-Za-z0-9_.][-A-Za-z0-9_.]{0,62}")  # a part of handles, which are short
KEY = "topologyConstrainedPools"


class OtherPool(Schema, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another pool of an instance. What is not here is as for its own."""

    topology: dict[str, str] = msgspec.field(default_factory=dict)
    nodes: tuple[str, ...] = ("*",)
    data_pool: str = ""


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    label: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="domainLabel")
    value: Annotated[str, msgspec.Meta(min_length=1)]


class ConstrainedPool(msgspec.Struct, frozen=True, kw_only=True):
    pool: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="poolName")
    data_pool: str = msgspec.field(default="", name="dataPool")
    domains: tuple[Domain, ...] = msgspec.field(name="domainSegments")

    @property
    def segments(self) -> dict[str, str]:
        """The segments by our keys: `zone` for the node label topology.kubernetes.io/zone."""
        return {one.label.rpartition("/")[2].lower(): one.value for one in self.domains}


def pools_problems(own: str, pools: Mapping[str, OtherPool]) -> Iterator[str]:
    """Check the `pools` of an instance."""
    for name, pool in pools.items():
        if not _POOL.fullmatch(name):
            yield f"{name!r} is not a name for one of several pools: 1 to 63 of letters, digits, '-', '_' and '.'"
        if name == own:
            yield f"{name!r} is the instance's `pool` already; leave it out"
        yield ceph_rules.name_problem(pool.data_pool)
        yield from (ceph_rules.segment_problem(*item) for item in pool.topology.items())
        if pool.nodes != ("*",) and not pool.topology:
            yield f"'nodes' of {name!r} needs 'topology': without it pods are scheduled to nodes that do not reach it"


def constraint_problem(text: str) -> str:
    """Check the form of the parameter."""
    try:
        constraint(text)
    except msgspec.MsgspecError as error:
        return (
            f"it is not a list of pools as ceph-csi writes it ({error}); leave it out, since the instance has the "
            "pools: `pool`, `topology` and `pools` of the configuration"
        )
    return ""


def constraint(text: str) -> list[ConstrainedPool]:
    """Return what the parameter says; nothing where it is not set. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(text, type=list[ConstrainedPool]) if text else []
