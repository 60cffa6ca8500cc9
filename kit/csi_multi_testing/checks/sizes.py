"""Sizes: within what was asked for, the same in every answer, and really there (csi-spec CapacityRange)."""

from __future__ import annotations

import os

from csi_multi.contract import NotFound, OutOfRange, ResourceExhausted, SizeRange, StorageError, Volume

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext
from ..operations.base import describe_error, retry
from ..protocol import Target
from .creation import nothing_new


def sized(t: CheckContext, required: int, limit: int = 0, why: str = "") -> Volume:
    """Make a volume and demand that its size is what was asked for, in every answer."""
    size = SizeRange(required=required, limit=limit)
    made = retry(lambda: t.volume(size=required, limit=limit), f"create_volume for {size}{why}")
    _judge(t, made, size)
    return made


def _judge(t: CheckContext, made: Volume, size: SizeRange) -> None:
    told = f"create_volume for {size}: answered a size of {made.size} bytes"
    expect(made.size > 0, f"{told}, the contract requires the real one")
    expect(size.holds(made.size), f"{told}, the contract requires one within what was asked for, or OutOfRange")
    same(t.client.get(made.handle).size, made.size, "the size that get_volume tells, against create_volume's")


@check()
def a_volume_has_at_least_the_required_size(t: CheckContext) -> None:
    sized(t, t.size)


@check()
def a_required_size_is_rounded_up_and_never_down(t: CheckContext) -> None:
    """No unit is as small as a byte, so one byte more than a volume has is between two of them."""
    sized(t, t.volume().size + 1)


@check()
def a_rounded_size_stays_within_the_limit(t: CheckContext) -> None:
    """The limit leaves room for the size that the backend itself chooses, so there is no reason to refuse."""
    chosen = t.volume(size=t.size + 1).size

    sized(t, t.size + 1, chosen)


@check()
def a_size_limit_alone_is_enough(t: CheckContext) -> None:
    sized(t, 0, t.volume().size)


@check()
def a_volume_without_a_size_gets_the_default(t: CheckContext) -> None:
    """csi-spec: the plugin chooses. Its default may be more than is free."""
    try:
        made = t.volume(size=0)
    except ResourceExhausted as error:
        raise CheckSkipped(f"the default size is not free: {error}") from None
    except StorageError as error:
        raise CheckFailed(
            f"create_volume without a size: raised {describe_error(error)}, the contract requires a volume"
        ) from error
    _judge(t, made, SizeRange())


@check()
def an_exact_size_is_created_exactly(t: CheckContext) -> None:
    given = bool(t.storage.exact_sizes)
    why = f" ({'of' if given else 'Storage.size or twice it, for want of'} Storage.exact_sizes)"
    for exact in t.storage.exact_sizes or (t.size, 2 * t.size):
        made = sized(t, exact, exact, why)
        t.client.delete(made.handle)
        t.forget(made)


@check()
def a_size_range_without_a_possible_size_is_refused(t: CheckContext) -> None:
    """A backend that makes every size may serve these."""
    chosen = t.volume().size
    for required, limit in ((1, 1), (chosen + 1, chosen + 1)):
        size, before, name = SizeRange(required=required, limit=limit), t.new(), t.name()
        try:
            _judge(t, t.volume(name, required, limit=limit), size)
        except StorageError as error:
            told = f"create_volume for {size}: raised {describe_error(error)}"
            expect(isinstance(error, OutOfRange), f"{told}, the contract requires OutOfRange")
            nothing_new(t, before, f"create_volume for {size}: refused, but")


@check()
def a_size_that_is_too_large_is_refused_and_leaves_nothing(t: CheckContext) -> None:
    name, before = t.name(), t.new()
    what = f"create_volume for {t.storage.too_large} bytes (Storage.too_large)"

    with t.refused(OutOfRange, ResourceExhausted, what=what):
        t.volume(name, t.storage.too_large)

    nothing_new(t, before, f"{what}: refused, but")
    if t.client.target is Target.BACKEND:
        with t.refused(NotFound, what=f"{what}: refused, then find_volume"):
            t.backend.find_volume(name)
    made = retry(lambda: t.volume(name), f"{what}: refused, then one of {t.size} bytes with the same name")
    _judge(t, made, SizeRange(required=t.size))


@check(data=True)
def a_volume_holds_data_up_to_its_end(t: CheckContext) -> None:
    made = sized(t, t.size)

    t.fill(made, "kit size")
    t.expect_filled(made, "kit size", made.size, f"a volume of {made.size} bytes, written at both ends")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_device_is_as_large_as_its_volume(t: CheckContext) -> None:
    """An odd size shows whether what is told was rounded as what was made."""
    made = sized(t, t.size + 1)

    with t.in_process.opened(made.handle) as device:
        descriptor = os.open(device.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.lseek(descriptor, 0, os.SEEK_END)
        finally:
            os.close(descriptor)
    same(found, made.size, f"the bytes of {device.path}, against the size that create_volume told")
