"""Backends that confuse nodes, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from csi_multi_testing.check import CHECKS, CheckState, Outcome
from csi_multi_testing.checks import other_nodes

from csi_multi.contract import NO_SECRETS, Device, InUse, NotFound, OpenRequest, Strings

from .file_backend import OPEN, FileBackend, over_files
from .held import Held
from .loop_devices import Looped, looped, remove_devices

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class Promising(Held):
    """Says that it keeps other nodes away, and leaves that to them."""

    def refuse_held(self, handle: str) -> None:
        """Let whoever comes have it."""


class Nameless(Held):
    """Does not say who has it."""

    def refuse_held(self, handle: str) -> None:
        try:
            super().refuse_held(handle)
        except InUse:
            raise
        except Exception:
            raise InUse("the volume is open elsewhere") from None


class Beginning(Held):
    """Compares how the names of nodes begin."""

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        found = FileBackend.find_device(self, handle)
        return found if self.is_mine(handle) else None

    def is_mine(self, handle: str) -> bool:
        holder = self.holder(handle)
        return bool(holder) and self.setting.node.startswith(holder)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        with self._locked(), suppress(NotFound):
            if self.is_mine(handle):
                (self.root / OPEN / handle).unlink(missing_ok=True)
                self.holder_file(handle).unlink()


class Freeing(Held):
    """Gives up what it does not hold."""

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        super().close_device(handle)
        with suppress(NotFound):
            self.holder_file(handle).unlink(missing_ok=True)


class Closing(Held):
    """Ends what another node has open."""

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        FileBackend.close_device(self, handle)


class Detaching(Looped):
    """Detaches the volume from whatever node has it, when a device is closed."""

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        super().close_device(handle)
        self.storage.attached.pop(handle, None)


class LookingFirst(Held):
    """Looks for the holder, and then takes the lock."""

    def hold(self, handle: str) -> None:
        self.refuse_held(handle)
        with self._locked():
            self.holder_file(handle).write_text(self.setting.node)


class Ending(Held):
    """Closes the device where another node asks for it."""

    def open_device(self, request: OpenRequest) -> Device:
        try:
            return super().open_device(request)
        except Exception:
            FileBackend.close_device(self, request.handle)
            raise


BROKEN = [
    (
        other_nodes.a_volume_that_is_open_on_one_node_is_refused_on_another_one,
        over_files(Promising),
        "open_device on node 'node-2' of a volume that is open here: succeeded",
    ),
    (
        other_nodes.a_volume_that_is_open_on_one_node_is_refused_on_another_one,
        over_files(Nameless),
        "which does not name node 'node-1'",
    ),
    (
        other_nodes.a_volume_that_is_open_on_one_node_is_refused_on_another_one,
        over_files(Ending),
        "refused, then find_device on the node that has it open: found None",
    ),
    (
        other_nodes.closing_a_volume_on_another_node_leaves_it_open_on_this_one,
        over_files(Freeing),
        "close_device on node 'node-10' of a volume that is open here, then open_device on node 'node-2': succeeded",
    ),
    (
        other_nodes.closing_a_volume_on_another_node_leaves_it_open_on_this_one,
        over_files(Closing),
        "close_device on node 'node-10' of a volume that is open here, then delete_volume by a controller",
    ),
    (
        other_nodes.closing_a_volume_on_another_node_leaves_it_open_on_this_one,
        looped(Detaching),
        "then delete_volume by a controller on this node: succeeded",
    ),
    (
        other_nodes.closing_a_volume_on_another_node_leaves_it_open_on_this_one,
        over_files(Beginning),
        "find_device on node 'node-10' returns the device that another node has open",
    ),
    (
        other_nodes.two_nodes_that_open_a_volume_at_any_call_do_not_both_have_it,
        over_files(LookingFirst),
        "both nodes have the volume open",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


CORRECT = [pytest.param(one.body, id=one.name) for one in CHECKS.values() if one.group == "other_nodes"]


@pytest.mark.parametrize("check", CORRECT)
def test_a_backend_that_keeps_nodes_apart_passes(judged: Callable[..., Outcome], check: Any) -> None:
    outcome = judged(check, over_files(Held))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_an_attached_device_that_every_process_of_the_machine_finds_passes(judged: Callable[..., Outcome]) -> None:
    outcome = judged(other_nodes.closing_a_volume_on_another_node_leaves_it_open_on_this_one, looped(Looped))

    assert outcome.state is CheckState.PASSED, outcome.text


class Seeing(Held):
    """Asks what all processes of a machine see."""

    find_device = FileBackend.find_device


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (FileBackend, "neither Attach nor opens_exclusively is declared"),
        (Seeing, "so this machine cannot stand for several nodes"),
    ],
)
def test_nodes_that_cannot_be_told_apart_are_skipped(
    judged: Callable[..., Outcome], kind: type[FileBackend], words: str
) -> None:
    check = other_nodes.closing_a_volume_on_another_node_leaves_it_open_on_this_one
    outcome = judged(check, over_files(kind))

    assert outcome.state is CheckState.SKIPPED, outcome.text
    assert words in outcome.text
