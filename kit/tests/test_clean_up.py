"""After a check its resources are removed, also when the check failed or a removal is refused for a while."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from csi_multi_testing import memory, waiting
from csi_multi_testing.assertions import CheckFailed
from csi_multi_testing.check import Check, CheckState, Outcome, run
from csi_multi_testing.context import CheckContext, in_process
from csi_multi_testing.fault_injection import ProcessDied
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.protocol import Target
from csi_multi_testing.storage import Storage

from csi_multi.contract import Backend, Host, InUse, Node, Strings, Unavailable, Volume, VolumeRequest


def result(body: Callable[[CheckContext], None], storage: Storage) -> Outcome:
    one = Check(name="own", group="own", body=body, features=(), needs=(), data=False, target=Target.BACKEND)
    return run(one, in_process(storage))


def left(storage: Storage) -> list[str]:
    assert storage.resources
    return list(storage.resources())


class Commanding(MemoryBackend):
    """Runs a program for each creation and deletion."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.setting.host.run("true")
        return super().create_volume(request)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.setting.host.run("true")
        super().delete_volume(handle, secrets)


def dies(t: CheckContext) -> None:
    """Make a volume; then the process dies."""
    t.volume()
    with t.injector.inject(1), suppress(ProcessDied):
        t.volume()


def hook_fails(t: CheckContext) -> None:
    dies(t)
    raise OSError("the hook failed")


def goes_on_with_the_dead_process(t: CheckContext) -> None:
    dies(t)
    t.volume()


def restarts(t: CheckContext) -> None:
    dies(t)
    t.client.restart()


@pytest.mark.parametrize(
    ("body", "words"), [(hook_fails, "the hook failed"), (goes_on_with_the_dead_process, "this process has died")]
)
def test_a_check_that_fails_after_a_death_is_a_result_and_leaves_nothing(
    body: Callable[[CheckContext], None], words: str
) -> None:
    storage = memory.storage(Commanding)

    outcome = result(body, storage)

    assert outcome.state is CheckState.FAILED
    assert words in outcome.text
    assert left(storage) == []


def test_a_check_leaves_nothing_when_the_hook_for_a_restart_fails() -> None:
    def restarted() -> None:
        raise OSError("no lease to drop")

    storage = memory.storage(Commanding, restarted=restarted)

    outcome = result(restarts, storage)

    assert outcome.state is CheckState.FAILED
    assert "no lease to drop" in outcome.text
    assert left(storage) == []


def test_a_check_leaves_nothing_when_a_connection_fails() -> None:
    storage = memory.storage(Commanding)
    connect, number = storage.connect, itertools.count(1)

    def second_fails(host: Host) -> Backend:
        if next(number) == 2:
            raise ConnectionError("the server does not answer yet")
        return connect(host)

    outcome = result(restarts, replace(storage, connect=second_fails))

    assert outcome.state is CheckState.FAILED
    assert "does not answer yet" in outcome.text
    assert left(storage) == []


class Shelved(MemoryBackend):
    """Refuses everything for a while."""

    tries = 3

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if Shelved.tries:
            Shelved.tries -= 1
            raise Unavailable("the storage was away a moment ago")
        super().detach(handle, node, secrets)


def attaches(t: CheckContext) -> None:
    for _ in range(2):
        t.attach(t.volume(), t.storage.nodes[0])
    raise CheckFailed("found something")


def test_what_is_refused_for_a_while_is_removed_later() -> None:
    storage = memory.storage(Shelved)

    outcome = result(attaches, storage)

    assert outcome.text == "found something"
    assert left(storage) == []


class Stuck(MemoryBackend):
    """Never detaches the first volume."""

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if handle == min(self.storage.volumes):
            raise InUse(f"volume {handle!r} is in use")
        super().detach(handle, node, secrets)


def test_what_cannot_be_removed_does_not_keep_the_rest() -> None:
    storage = memory.storage(Stuck)

    result(attaches, storage)

    assert len(left(storage)) == 1


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PAUSE", 0.001)
