"""kill -9 at any moment: the repeated request is served once, and nothing leaks."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from csi_multi.contract import SizeRange, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..concurrency import TIME_LIMIT
from ..context import CheckContext
from ..counting import added_since, expect_nothing_left
from ..operations.base import expect_not_found, retry, wait_until_ready
from ..operations.create import SEED, SnapshotSources, source_volume
from ..protocol import Target

KILLS = 8  # per operation, spread over its duration


class KilledOperation(ABC):
    """An operation during which the driver is killed."""

    label: str

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self.spec = t.spec()
        self.counts: list[int] = []  # of resources that each run created; the first run was not killed

    def renew(self) -> None:  # noqa: B027 - optional on purpose
        """Replace what all runs share if it does not allow one more run."""

    def prepare(self) -> None:
        """Choose or create a new resource."""
        self.spec = self.t.spec()

    @abstractmethod
    def act(self) -> Any:
        """Make the request. It is the same each time until the next `prepare`."""

    @abstractmethod
    def verify(self, answer: Any, what: str) -> None:
        """Require that the state is as requested, and delete the resource."""

    def expect_created_once(self, what: str) -> None:
        """Require as many resources as after a run without a kill."""
        self.counts.append(added_since(self.t, self.before))
        text = (
            f"{what}: the storage holds {self.counts[-1]} new resources, a run without a kill creates {self.counts[0]}"
        )
        expect(self.counts[-1] == self.counts[0], text)

    def expect_survival(self) -> None:
        """Kill the driver at several moments, repeat the request, and verify the state."""
        duration = self._run_without_kill()
        for number in range(KILLS):
            after = duration * number / KILLS
            self._begin()
            thread = threading.Thread(target=self._try, daemon=True)
            thread.start()
            time.sleep(after)
            self.t.client.restart()
            thread.join(TIME_LIMIT)
            what = f"{self.label}, killed after {after * 1000:.0f} ms and repeated"
            expect(not thread.is_alive(), f"{what}: the first call does not return within {TIME_LIMIT:g} s")
            self._end(retry(self.act, what), what)
        self.t.note(f"{self.label}, killed {KILLS} times within {duration * 1000:.0f} ms")

    def _run_without_kill(self) -> float:
        """Return the seconds that the operation takes."""
        self._begin()
        started = time.monotonic()
        answer = self.act()
        duration = time.monotonic() - started
        self._end(answer, f"{self.label}, without a kill")
        return duration

    def _begin(self) -> None:
        self.renew()
        self.before = self.t.resources()
        self.prepare()

    def _try(self) -> None:
        try:
            self.act()
        except BaseException:  # its process was killed: any error may follow
            return

    def _end(self, answer: Any, what: str) -> None:
        self.verify(answer, what)
        expect_nothing_left(self.t, self.before, f"{what}, then deleted")

    def delete(self, volume: Volume, what: str) -> None:
        retry(partial(self.t.client.delete, volume.handle), f"{what}, then delete_volume")
        self.t.forget(volume)


class KilledCreate(KilledOperation):
    label = "create_volume"

    def act(self) -> Volume:
        return self.t.create(self.spec)

    def verify(self, answer: Volume, what: str) -> None:
        same(self.act(), answer, f"{what}: create_volume, once more")
        self.expect_created_once(what)
        self.delete(answer, what)


class KilledDelete(KilledOperation):
    label = "delete_volume"

    def prepare(self) -> None:
        self.volume = self.t.volume()

    def act(self) -> None:
        self.t.client.delete(self.volume.handle)

    def verify(self, answer: None, what: str) -> None:
        expect_not_found(partial(self.t.client.get, self.volume.handle), f"{what}, then get_volume")
        self.t.forget(self.volume)


class KilledExpand(KilledOperation):
    label = "expand_volume"

    def prepare(self) -> None:
        self.volume = source_volume(self.t)

    def act(self) -> int:
        return self.t.client.expand(self.volume.handle, SizeRange(required=2 * self.t.size)).size

    def verify(self, answer: int, what: str) -> None:
        expect(answer >= 2 * self.t.size, f"{what}: answered {answer} bytes, requested were {2 * self.t.size}")
        same(self.t.client.get(self.volume.handle).size, answer, f"{what}: the size of get_volume")
        if not self.t.no_data_reason():
            self.t.expect_filled(self.volume, SEED, self.volume.size, what)
        self.delete(self.volume, what)


class KilledSnapshot(KilledOperation):
    label = "create_snapshot"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.sources = SnapshotSources(t, source_volume)

    @property
    def source_volume(self) -> Volume:
        return self.sources.volumes[0]

    def renew(self) -> None:
        self.sources.renew()

    def prepare(self) -> None:
        self.name = self.t.name("snapshot")

    def act(self) -> Snapshot:
        return self.t.snapshot(self.source_volume, self.name)

    def verify(self, answer: Snapshot, what: str) -> None:
        same(self.act().handle, answer.handle, f"{what}: create_snapshot, once more")
        self.expect_created_once(what)
        if not self.t.no_data_reason():
            copy = retry(partial(self.t.copy, wait_until_ready(self.t, answer)), f"{what}, then restore_volume")
            self.t.expect_filled(copy, SEED, self.source_volume.size, f"{what}: a volume restored from the snapshot")
            self.delete(copy, what)
        retry(partial(self.t.client.delete_snapshot, answer.handle), f"{what}, then delete_snapshot")
        self.t.forget(answer)


@check(target=Target.WIRE)
def a_creation_survives_kill_9_at_any_moment(t: CheckContext) -> None:
    KilledCreate(t).expect_survival()


@check(target=Target.WIRE)
def a_deletion_survives_kill_9_at_any_moment(t: CheckContext) -> None:
    KilledDelete(t).expect_survival()


@check(b.Expand, target=Target.WIRE)
def an_expansion_survives_kill_9_at_any_moment(t: CheckContext) -> None:
    KilledExpand(t).expect_survival()


@check(b.Snapshots, target=Target.WIRE)
def a_snapshot_survives_kill_9_at_any_moment(t: CheckContext) -> None:
    KilledSnapshot(t).expect_survival()
