"""Backends with wrong node-local volumes, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import node_local

from csi_multi.contract import (
    NotFound,
    Volume,
    VolumeRequest,
)
from csi_multi.contract import backend as b

from .placed import Local, Rows, about, local


class Looking(Local):
    """Asks the storage where a volume is."""

    def node_of(self, handle: str) -> str:
        node = super().node_of(handle)
        if node == self.setting.node:
            self.look(handle)
        return node


class Anywhere(Local):
    """Says that everything is here."""

    def node_of(self, handle: str) -> str:
        super().node_of(handle)
        return self.setting.node


class Splitting(Local):
    """Takes what stands before a slash, there or not."""

    def node_of(self, handle: str) -> str:
        return handle.split("/")[0]


class Nameless(Local):
    """Does not put the node first."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.setting = replace(self.setting, node=f"{self.setting.node}.example")

    def create_volume(self, request: VolumeRequest) -> Volume:
        node, self.setting = self.setting, replace(self.setting, node="node-1")
        try:
            return super().create_volume(request)
        finally:
            self.setting = node


class Lax(Local):
    """Looks at the end of a handle only: nobody would ask for another node's volumes here."""

    def get_volume(self, handle: str) -> Volume:
        return super().get_volume(f"{self.setting.node}/{handle.rpartition('/')[2]}")


class Roaming(Local):
    """Says on every second start that the node is called otherwise."""

    starts = 0

    def __init__(self, config: Any, setting: b.Setting, rows: Rows) -> None:
        type(self).starts += 1
        super().__init__(config, replace(setting, node=f"{setting.node}{self.starts}"), rows)


class Wandering(Local):
    """Gives a volume to a node that was preferred, wherever this is."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        here = self.setting
        for place in (*(request.topology.preferred if request.topology else ()),):
            self.setting = replace(here, node=place["node"])
        try:
            return super().create_volume(request)
        finally:
            self.setting = here


class Adrift(Local):
    """Says that a place out of its reach is not found."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.topology and any(place["node"] != self.setting.node for place in request.topology.requisite):
            raise NotFound("no such node")
        return super().create_volume(request)


BROKEN = [
    (node_local.the_node_and_its_volumes_have_the_same_segments, local(Roaming), "of the next process"),
    (node_local.a_handle_starts_with_the_name_of_its_node, local(Nameless), "does not start with the node's name"),
    (node_local.the_node_of_a_handle_is_known_without_a_call_to_the_storage, local(Looking), "node_of made calls"),
    (
        node_local.the_node_of_a_handle_is_known_without_a_call_to_the_storage,
        local(Anywhere),
        "the contract requires 'node-10'",
    ),
    (node_local.a_handle_without_a_node_is_not_found, local(Splitting), "node_of('?'): succeeded"),
    (
        node_local.a_volume_is_created_on_this_node_or_not_at_all,
        local(Wandering),
        "the node of a volume for this or another node",
    ),
    (node_local.a_volume_is_created_on_this_node_or_not_at_all, local(Adrift), "no such node"),
    (node_local.a_handle_of_another_node_is_refused, local(Lax), "a handle of another node"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("one", about(b.NodeLocal))
def test_a_backend_of_one_node_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, local())

    assert outcome.state is CheckState.PASSED, outcome.text
