"""Backends that return an open device as it is, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import reopened_devices

from csi_multi.contract import Device, InUse, OpenRequest

from .loop_devices import Discarding, Looped, looped, remove_devices

pytestmark = pytest.mark.root


class Returning(Looped):
    """Returns the device that is open."""

    def open_device(self, request: OpenRequest) -> Device:
        return self.find_device(request.handle) or super().open_device(request)


class Claiming(Returning):
    """Returns the device that is open, and says what was asked for."""

    def open_device(self, request: OpenRequest) -> Device:
        return replace(super().open_device(request), read_only=request.read_only)


class Refusing(Looped):
    """Opens nothing twice in two ways."""

    error: type[Exception] = InUse

    def open_device(self, request: OpenRequest) -> Device:
        found = self.find_device(request.handle)
        if found and found.read_only != request.read_only:
            raise self.error(f"{found.path} is open with other properties")
        return super().open_device(request)


class Stumbling(Refusing):
    """Does not expect a device that is open."""

    error = AssertionError


BROKEN = [
    (
        reopened_devices.an_open_device_is_opened_again_as_requested_or_not_at_all,
        looped(Returning),
        "opened with read_only=False: Device.read_only: found False, the contract requires True",
    ),
    (
        reopened_devices.an_open_device_is_opened_again_as_requested_or_not_at_all,
        looped(Claiming),
        "opened with read_only=False: whether the kernel refuses writes: found False",
    ),
    (
        reopened_devices.an_open_device_is_opened_again_as_requested_or_not_at_all,
        looped(Stumbling),
        "which is not an error of csi_multi.contract, the contract requires InUse",
    ),
    (
        reopened_devices.a_device_that_is_opened_again_has_the_new_size_of_its_volume,
        looped(Returning),
        "open_device, expand_volume, open_device again: the size of /dev/loop",
    ),
    (
        reopened_devices.what_was_not_synced_survives_closing_the_device,
        looped(Discarding),
        "written without a sync, then close_device: what was written at 0 is lost",
    ),
]


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    yield
    remove_devices()


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("kind", [Looped, Refusing])
def test_a_device_that_is_opened_again_as_requested_or_refused_passes(
    judged: Callable[..., Outcome], kind: type[Looped]
) -> None:
    for check in (
        reopened_devices.an_open_device_is_opened_again_as_requested_or_not_at_all,
        reopened_devices.a_device_that_is_opened_again_has_the_new_size_of_its_volume,
    ):
        outcome = judged(check, looped(kind))

        assert outcome.state is CheckState.PASSED, outcome.text
