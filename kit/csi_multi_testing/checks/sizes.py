"""Sizes: within the requested range, equal in every answer, and usable (csi-spec CapacityRange)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from csi_multi.contract import NotFound, OutOfRange, ResourceExhausted, SizeRange, StorageError, Volume

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext
from ..operations.base import describe_error, retry
from ..protocol import Target
from .creation import expect_nothing_new


def create_with_size(t: CheckContext, required: int, limit: int = 0, why: str = "") -> Volume:
    """Create a volume and require that its size is as requested in every answer."""
    size = SizeRange(required=required, limit=limit)
    made = retry(lambda: t.volume(size=required, limit=limit), f"create_volume for {size}{why}")
    _expect_size(t, made, size)
    return made


def _expect_size(t: CheckContext, made: Volume, size: SizeRange) -> None:
    message = f"create_volume for {size}: returned a size of {made.size} bytes"
    expect(made.size > 0, f"{message}, the contract requires the real size")
    expect(size.holds(made.size), f"{message}, the contract requires a size within the range, or OutOfRange")
    same(t.client.get(made.handle).size, made.size, "the size of get_volume, compared with create_volume's")


@check()
def a_volume_has_at_least_the_required_size(t: CheckContext) -> None:
    create_with_size(t, t.size)


@check()
def a_required_size_is_rounded_up_and_never_down(t: CheckContext) -> None:
    """No unit is as small as one byte, so one byte more than the size of a volume is between two units."""
    create_with_size(t, t.volume().size + 1)


@check()
def a_rounded_size_stays_within_the_limit(t: CheckContext) -> None:
    """The limit is the size that the backend itself chooses, so it has no reason to refuse."""
    chosen = t.volume(size=t.size + 1).size

    create_with_size(t, t.size + 1, chosen)


@check()
def a_size_limit_alone_is_enough(t: CheckContext) -> None:
    create_with_size(t, 0, t.volume().size)


@contextmanager
def space_for_the_default() -> Iterator[None]:
    """Raise CheckSkipped where the storage has no space for a volume of the backend's default size."""
    try:
        yield
    except ResourceExhausted as error:
        raise CheckSkipped(f"there is no space for a volume of the default size: {error}") from None


@check()
def a_volume_without_a_size_gets_the_default(t: CheckContext) -> None:
    """csi-spec: the plugin chooses. The default may be larger than the free space."""
    try:
        with space_for_the_default():
            made = t.volume(size=0)
    except StorageError as error:
        raise CheckFailed(
            f"create_volume without a size: raised {describe_error(error)}, the contract requires a volume"
        ) from error
    _expect_size(t, made, SizeRange())


@check(target=Target.BACKEND)
def a_volume_without_a_size_is_large_enough_for_its_filesystem(t: CheckContext) -> None:
    """SizeRange.least is what mkfs needs: in a smaller volume it fails for ever."""
    with space_for_the_default():
        default = t.volume(size=0)
        t.delete(default)
        size = SizeRange(least=default.size + 1)
        made = t.create(replace(t.spec(), size=size))
    expect(made.size >= size.least, f"create_volume for {size}: returned a size of {made.size} bytes")

    low = replace(size, limit=default.size)
    with t.refused(OutOfRange, what=f"create_volume for {low}"):
        t.create(replace(t.spec(), size=low))


@check()
def an_exact_size_is_created_exactly(t: CheckContext) -> None:
    given = bool(t.storage.exact_sizes)
    why = f" ({'of' if given else 'Storage.size or twice that, without'} Storage.exact_sizes)"
    for exact in t.storage.exact_sizes or (t.size, 2 * t.size):
        made = create_with_size(t, exact, exact, why)
        t.delete(made)


@check()
def a_size_range_without_a_possible_size_is_refused(t: CheckContext) -> None:
    """A backend that creates every size may serve these requests."""
    chosen = t.volume().size
    for required, limit in ((1, 1), (chosen + 1, chosen + 1)):
        size, before, name = SizeRange(required=required, limit=limit), t.new_resources(), t.name()
        try:
            _expect_size(t, t.volume(name, required, limit=limit), size)
        except StorageError as error:
            message = f"create_volume for {size}: raised {describe_error(error)}"
            expect(isinstance(error, OutOfRange), f"{message}, the contract requires OutOfRange")
            expect_nothing_new(t, before, f"create_volume for {size}: refused, but")


@check()
def a_size_that_is_too_large_is_refused_and_leaves_nothing(t: CheckContext) -> None:
    name, before = t.name(), t.new_resources()
    what = f"create_volume for {t.storage.too_large} bytes (Storage.too_large)"

    with t.refused(OutOfRange, ResourceExhausted, what=what):
        t.volume(name, t.storage.too_large)

    expect_nothing_new(t, before, f"{what}: refused, but")
    if t.client.target is Target.BACKEND:
        with t.refused(NotFound, what=f"{what}: refused, then find_volume"):
            t.backend.find_volume(name)
    made = retry(lambda: t.volume(name), f"{what}: refused, then one of {t.size} bytes with the same name")
    _expect_size(t, made, SizeRange(required=t.size))


@check(data=True)
def a_volume_holds_data_up_to_its_end(t: CheckContext) -> None:
    made = create_with_size(t, t.size)

    t.fill(made, "kit size")
    t.expect_filled(made, "kit size", made.size, f"a volume of {made.size} bytes, written at both ends")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_device_is_as_large_as_its_volume(t: CheckContext) -> None:
    """An unaligned size shows whether the reported size is rounded like the real one."""
    made = create_with_size(t, t.size + 1)

    with t.in_process.open_device(made.handle) as device:
        descriptor = os.open(device.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.lseek(descriptor, 0, os.SEEK_END)
        finally:
            os.close(descriptor)
    same(found, made.size, f"the size of {device.path}, compared with the size of create_volume")
