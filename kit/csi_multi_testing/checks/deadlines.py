"""Requests whose caller has stopped waiting (request.deadline): they end as usual or with Timeout, and are repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from csi_multi.contract import ExpandRequest, SizeRange, SnapshotRequest
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext, source
from ..operations.base import RETRYABLE_ERRORS, attempt, describe_error, retry
from ..operations.create import as_ready, source_volume
from ..protocol import Target, VolumeSpec
from .creation import expect_repeats
from .sources import snapshot_as_source


def ended() -> float:
    """Return a deadline that is over."""
    return time.monotonic() - 1.0


def expect_end(method: str, act: Callable[[], Any]) -> None:
    """Require success or an error that is repeated: the work may go on, and nobody waits for it."""
    _, error = attempt(act)
    text = f"{method} with a deadline that is over: raised {describe_error(error) if error else ''}"
    expect(
        error is None or isinstance(error, NOT_FINAL), f"{text}, the contract requires success or {RETRYABLE_ERRORS}"
    )


def creations(t: CheckContext) -> Iterator[tuple[str, VolumeSpec]]:
    volume = source_volume(t)
    yield "create_volume", t.spec()
    if b.Clone in t.features:
        yield "clone_volume", t.spec(size=0, source=source(volume))
    if b.Snapshots in t.features:
        yield "restore_volume", t.spec(size=0, source=source(snapshot_as_source(t, volume)))


@check(target=Target.BACKEND)
def a_creation_whose_time_is_over_can_be_repeated(t: CheckContext) -> None:
    for method, spec in creations(t):
        wanted = replace(t.in_process.request(spec), deadline=ended())
        expect_end(method, partial(getattr(t.backend, method), wanted))
        made = retry(partial(t.create, spec), f"{method}, repeated after its time was over")
        expect_repeats(t, made, spec, f"{method}, once more after its time was over")


@check(b.Snapshots, target=Target.BACKEND)
def a_snapshot_whose_time_is_over_can_be_repeated(t: CheckContext) -> None:
    volume, name = t.volume(), t.name("snapshot")
    stamp = replace(t.in_process.request(t.spec()).stamp, name=name, digest=t.snapshot(volume).stamp.digest, context={})
    wanted = SnapshotRequest(stamp=stamp, source=volume.handle, secrets=t.storage.secrets, deadline=ended())
    expect_end("create_snapshot", lambda: t.backend.create_snapshot(wanted))
    made = retry(partial(t.snapshot, volume, name), "create_snapshot, repeated after its time was over")
    same(as_ready(t.snapshot(volume, name)), as_ready(made), "create_snapshot, once more after its time was over")


@check(b.Expand, target=Target.BACKEND)
def an_expansion_whose_time_is_over_can_be_repeated(t: CheckContext) -> None:
    volume = t.volume()
    if t.in_process.grows_only_attached:
        t.attach(volume, t.in_process.node())
    size = SizeRange(required=volume.size + t.size)
    wanted = ExpandRequest(handle=volume.handle, size=size, secrets=t.storage.secrets, deadline=ended())
    expect_end("expand_volume", lambda: t.backend.expand_volume(wanted))
    done = retry(partial(t.client.expand, volume.handle, size), "expand_volume, repeated after its time was over")
    expect(done.size >= size.required, f"expand_volume, repeated after its time was over: {done.size} bytes")
    same(t.client.get(volume.handle).size, done.size, "expand_volume, repeated after its time was over, then its size")
