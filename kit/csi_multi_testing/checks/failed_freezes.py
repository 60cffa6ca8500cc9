"""A freeze that failed: what was copied in its block may be of several moments, so it is given up, and made anew."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from csi_multi.contract import FREEZE_SECONDS, Device, Unavailable, Volume
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import CheckSkipped, expect
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..operations.base import RETRYABLE_ERRORS, attempt, describe_error, expect_not_found, retry
from ..protocol import Target
from ..storage import changed_setting
from .devices import open_device
from .filesystems import new_filesystem, require_programs, size_for_a_filesystem
from .in_use import Cloning, Copying, Grouping, Snapshotting

FIND = {
    "create_snapshot": "find_snapshot",
    "clone_volume": "find_volume",
    "create_group_snapshot": "find_group_snapshot",
}
NEW = "kit after the freeze that failed"


class Freezing:
    """Setting.frozen. It freezes nothing, and fails at the end of its block, as after a thaw by another program."""

    def __init__(self) -> None:
        self.fails = True
        self.used = False

    @contextmanager
    def __call__(self, device: Path, seconds: float = FREEZE_SECONDS) -> Iterator[None]:
        self.used = True
        yield
        if self.fails:
            raise Unavailable(f"the filesystem on {device} was thawed before the end of the copy")


@contextmanager
def used(t: CheckContext, volumes: Sequence[Volume]) -> Iterator[None]:
    """Open the devices of these volumes for the block, with a mounted filesystem on each where that is possible."""
    with ExitStack() as stack:
        for volume in volumes:
            device = open_device(t, volume, block=False)
            stack.callback(t.backend.close_device, volume.handle)
            if _is_mountable(t, device):
                stack.enter_context(new_filesystem(device.path))
        yield


def _is_mountable(t: CheckContext, device: Device) -> bool:
    try:
        require_programs()
        size_for_a_filesystem(t)
    except CheckSkipped:
        return False
    return stat.S_ISBLK(device.path.stat().st_mode)


def expect_given_up(t: CheckContext, copying: Copying) -> None:
    """Copy volumes in use while freezes fail, and again when they do not."""
    volumes, freezing = [t.volume(size=_size(t)) for _ in range(copying.count)], Freezing()
    call = copying.call(t, volumes)
    what = f"{copying.method} whose freeze failed at its end"
    with changed_setting({"frozen": freezing}):
        t.client.restart()
        with used(t, volumes):
            _, error = attempt(call)
            if not freezing.used:
                raise CheckSkipped(f"{copying.method} freezes nothing")
            outcome = describe_error(error) if error else "it succeeded"
            expect(isinstance(error, NOT_FINAL), f"{what}: {outcome}, the contract requires {RETRYABLE_ERRORS}")
            find, name = getattr(t.backend, FIND[copying.method]), call.args[-1]
            expect_not_found(lambda: find(name), f"{what}, then {FIND[copying.method]}")

        freezing.fails = False
        for volume in volumes:
            t.write(volume, pattern(NEW), volume.size - BLOCK_SIZE)
        answer = retry(call, f"{what}, then the same request again")
        for handle, image in copying.images(t, answer).items():
            held = t.read(image, BLOCK_SIZE, volumes[0].size - BLOCK_SIZE)
            expect(held == pattern(NEW), f"{what}, then repeated: the copy of {handle!r} is the one that was given up")
    t.client.restart()


def _size(t: CheckContext) -> int:
    try:
        return size_for_a_filesystem(t)
    except CheckSkipped:
        return t.size


@check(b.Snapshots, needs=("devices",), data=True, target=Target.BACKEND)
def a_snapshot_whose_freeze_failed_is_given_up(t: CheckContext) -> None:
    expect_given_up(t, Snapshotting())


@check(b.Clone, needs=("devices",), data=True, target=Target.BACKEND)
def a_clone_whose_freeze_failed_is_given_up(t: CheckContext) -> None:
    expect_given_up(t, Cloning())


@check(b.GroupSnapshots, needs=("devices",), data=True, target=Target.BACKEND)
def a_group_whose_freeze_failed_is_given_up(t: CheckContext) -> None:
    expect_given_up(t, Grouping())
