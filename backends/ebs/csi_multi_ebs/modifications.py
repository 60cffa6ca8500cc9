"""Growth and changes of type and performance: one ModifyVolume for requests that arrive at nearly the same time.

EC2 allows few changes of a volume per day, and none while one is in progress. A claim's size and class often change in
one edit, which arrives as two calls. So the first call waits a moment for the second.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from csi_multi.contract import (
    InvalidArgument,
    OutOfRange,
    ResourceExhausted,
    SizeRange,
    StorageError,
    Timeout,
    Unavailable,
)

from . import labels
from .config import Config, MutableParameters
from .ec2_cache import MAX_LOOKUP, Ec2Cache
from .errors import ModificationCooldown
from .resources import Ec2Modification, Ec2Volume
from .state_poller import StatePoller
from .volume_types import VolumeSpec, modified_spec, size_in_gib

REFUSED = (InvalidArgument, OutOfRange, ResourceExhausted)  # this change, whatever the state of the volume
APPLIED_STATES = ("optimizing", "completed")  # the new size and performance are effective


@dataclass
class VolumeChange:
    """What two calls request of one volume, and the result for each."""

    deadline: float
    size: int | None = None  # GiB
    mutable: MutableParameters | None = None
    expanded: Future[Ec2Volume] = field(default_factory=Future)
    modified: Future[Ec2Volume] = field(default_factory=Future)


class ModificationManager:
    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._open: dict[str, VolumeChange] = {}  # by volume: another call may still join
        self._poller: StatePoller[Ec2Modification] = StatePoller(
            cache.client.modifications, most=MAX_LOOKUP, first=cache.config.poll_seconds
        )

    def expand(self, handle: str, requested: SizeRange, deadline: float | None) -> Ec2Volume:
        """Grow to a whole number of GiB. Raises OutOfRange, NotFound, and FailedPrecondition in the cooldown."""
        end = self._cache.wait_deadline(deadline)
        volume = self._cache.volume(handle)
        size = size_in_gib(volume.type, requested)
        if volume.size >= size:
            return volume
        return self._join(volume, VolumeChange(end, size=size)).expanded.result()

    def modify(self, handle: str, mutable: MutableParameters, deadline: float | None) -> Ec2Volume:
        """Change type, performance and tags. Raises InvalidArgument, NotFound, FailedPrecondition."""
        end = self._cache.wait_deadline(deadline)
        volume = self._cache.volume(handle)
        return self._join(volume, VolumeChange(end, mutable=mutable)).modified.result()

    def refusal(self, handle: str, mutable: MutableParameters) -> str:
        """Return why `modify` would raise InvalidArgument by the limits of types and tags; "": no reason."""
        volume = self._cache.volume(handle)
        try:
            _planned(self._cache.config, volume, None, mutable)
        except InvalidArgument as error:
            return str(error)
        return ""

    def _join(self, volume: Ec2Volume, requested: VolumeChange) -> VolumeChange:
        """Add a request to the open change of the volume; the caller that opened the change applies it."""
        with self._lock:
            change = self._open.setdefault(volume.id, requested)
            change.size = change.size if requested.size is None else requested.size
            change.mutable = change.mutable if requested.mutable is None else requested.mutable
        if change is requested:
            time.sleep(self._cache.config.merge_seconds)
            with self._lock:
                del self._open[volume.id]
            self._apply(volume, change)
        return change

    def _apply(self, volume: Ec2Volume, change: VolumeChange) -> None:
        """Apply both requests at once. What EC2 refuses of one must not keep the other from its own answer."""
        done: Future[Ec2Volume] = Future()
        try:
            done.set_result(self._change(volume, change.size, change.mutable, change.deadline))
        except REFUSED as error:
            if change.size and change.mutable:
                return self._apply_apart(volume, change, error)
            done.set_exception(error)
        except BaseException as error:
            done.set_exception(error)
        for one in (change.expanded, change.modified):
            if not one.done():
                _copy(done, one)
        return None

    def _apply_apart(self, volume: Ec2Volume, change: VolumeChange, error: StorageError) -> None:
        """Apply the growth alone, then the class, after EC2 or a limit has refused both together with `error`."""
        self._apply(volume, replace(change, mutable=None, modified=Future()))
        if change.expanded.exception():
            self._apply(volume, replace(change, size=None, expanded=Future()))
        else:
            change.modified.set_exception(error)  # it is for the class: EC2 makes one change at a time

    def _change(
        self, volume: Ec2Volume, size: int | None, mutable: MutableParameters | None, deadline: float
    ) -> Ec2Volume:
        """Change the volume, then its tags, so that a change that EC2 refuses has no effect at all."""
        client = self._cache.client
        spec, to_set, to_remove = _planned(self._cache.config, volume, size, mutable)
        if spec:
            # Another call may have changed since what this one does not: it is not sent, so that it stays.
            spec = replace(spec, type=spec.type if spec.type != volume.type else "", size=spec.size if size else 0)
            try:
                client.modify(volume.id, spec)
            except ModificationCooldown as error:
                last = client.modifications([volume.id]).get(volume.id)
                if last is None or not _matches(last, spec) or last.state == "failed":
                    raise ModificationCooldown(
                        f"volume {volume.id!r} cannot be changed now: {_remedy(last)} ({error})"
                    ) from error
                # An earlier call, maybe of a process that died, has begun this very change.
        if to_set:
            client.tag([volume.id], to_set)
        if to_remove:
            client.untag([volume.id], to_remove)
        return self._wait(volume.id, spec, deadline) if spec else volume

    def _wait(self, handle: str, spec: VolumeSpec, deadline: float) -> Ec2Volume:
        """Return the volume once it matches the spec. EC2 may show an earlier modification for a moment."""
        cache = self._cache
        try:
            last = self._poller.wait(
                handle,
                lambda one: one is not None and _matches(one, spec) and one.state in (*APPLIED_STATES, "failed"),
                deadline,
            )
            if last and last.state == "failed":
                raise Unavailable(f"EC2 could not change volume {handle!r}: {last.message}; try again")
            volume = cache.volume_poller.wait(handle, lambda one: one is not None and one.size >= spec.size, deadline)
        except Timeout as error:
            raise Unavailable(f"the change of volume {handle!r} is still in progress: {error}") from error
        assert volume  # a lookup that does not show it is no answer
        return volume


def _planned(
    config: Config, volume: Ec2Volume, size: int | None, mutable: MutableParameters | None
) -> tuple[VolumeSpec | None, dict[str, str], list[str]]:
    """Return the change of the volume (None: none), the tags to set, and the keys of tags to remove."""
    to_set, to_remove = labels.tag_changes(mutable, volume.tags, config) if mutable else ({}, [])
    return modified_spec(volume, mutable, size), to_set, to_remove


def _matches(last: Ec2Modification, spec: VolumeSpec) -> bool:
    """Return whether a modification is the change to this spec, of which type "" and size 0 are unchanged."""
    return (
        spec.type in ("", last.type)
        and spec.size in (0, last.size)
        and spec.iops in (None, last.iops)
        and spec.throughput in (None, last.throughput)
    )


def _remedy(last: Ec2Modification | None) -> str:
    """Say when a volume that EC2 refuses to change can be changed again."""
    if last and last.state in ("modifying", "optimizing"):
        return (
            f"its change to {last.size} GiB of type {last.type} is {last.state}, and EC2 makes one change at a time; "
            "try again when it is completed, which takes minutes to a day"
        )
    return "EC2 allows few changes of a volume in 24 hours; try again some hours, at most a day, after the last change"


def _copy(done: Future[Ec2Volume], to: Future[Ec2Volume]) -> None:
    if error := done.exception():
        to.set_exception(error)
    else:
        to.set_result(done.result())
