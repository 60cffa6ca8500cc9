"""As many RPCs at once as the sidecars send are all served, also beside an instance that hangs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.loading import admission

Code = grpc.StatusCode
CALLERS = 100  # external-provisioner's default of workers; the other sidecars have ten
WORK = 0.02  # seconds of an RPC in the storage


class Working(MemoryBackend):
    """A storage that takes a moment for everything."""

    moment = WORK

    def create_volume(self, request: Any) -> Any:
        time.sleep(self.moment)
        return super().create_volume(request)

    def get_volume(self, handle: str) -> Any:
        time.sleep(self.moment)
        return super().get_volume(handle)

    def capacity(self, request: Any) -> Any:
        time.sleep(self.moment)
        return super().capacity(request)


@pytest.fixture
def callers() -> Iterator[Callable[..., Counter[Code]]]:
    """callers(count, call) calls call(number) so many times at once, and returns how they ended."""
    with ThreadPoolExecutor(3 * CALLERS) as pool:

        def at_once(count: int, call: Callable[[int], Any]) -> Counter[Code]:
            together = threading.Barrier(count)

            def one(number: int) -> Code:
                together.wait()
                return ended(call, number)

            return Counter(pool.map(one, range(count)))

        yield at_once


def ended(call: Callable[[int], Any], number: int) -> Code:
    try:
        call(number)
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


RPCS: dict[str, Callable[[Any, Any], Callable[[int], Any]]] = {
    "CreateVolume": lambda client, wanted: lambda n: client.CreateVolume(**wanted(f"v{n}", "good"), timeout=60),
    "GetCapacity": lambda client, _: lambda _n: client.GetCapacity(parameters={"backend": "good"}, timeout=60),
    "ControllerGetVolume": lambda client, _: lambda _n: client.ControllerGetVolume(volume_id="good/v", timeout=60),
    "ControllerGetVolumeHealth": lambda client, _: (
        lambda _n: client.ControllerGetVolumeHealth(volume_id="good/v", timeout=60)
    ),
}


@pytest.mark.parametrize("rpc", RPCS)
def test_a_burst_at_one_of_two_instances_waits_and_is_served(
    rpc: str, serve: Any, make: Any, wanted: Any, callers: Any
) -> None:
    served = serve(make("good", Working), make("other"), workers=64)
    served.client.CreateVolume(**wanted("v", "good"))

    assert callers(CALLERS, RPCS[rpc](served.client, wanted)) == {Code.OK: CALLERS}


@pytest.mark.slow
def test_a_burst_at_a_slow_instance_waits_although_none_of_it_ends_for_a_while(
    serve: Any, make: Any, wanted: Any, callers: Any
) -> None:
    class Slow(Working):
        moment = 1.5

    served = serve(make("good", Slow), make("other"), workers=64)

    assert callers(CALLERS, RPCS["CreateVolume"](served.client, wanted)) == {Code.OK: CALLERS}


def test_more_callers_than_threads_at_the_only_instance_wait(serve: Any, make: Any, wanted: Any, callers: Any) -> None:
    served = serve(make("good", Working), workers=16)

    assert callers(CALLERS, RPCS["CreateVolume"](served.client, wanted)) == {Code.OK: CALLERS}


@pytest.mark.parametrize("rpc", ["CreateVolume", "ControllerGetVolume"])
def test_a_hundred_callers_of_a_healthy_instance_are_served_beside_a_hundred_of_one_that_hangs(
    rpc: str, serve: Any, make: Any, wanted: Any, callers: Any, behind: Any, hanging: Any, record_property: Any
) -> None:
    kind = type(hanging().backend("bad"))
    served = serve(make("good", Working), make("bad", kind), workers=64)
    client, took = served.client, []
    client.CreateVolume(**wanted("v", "good"))
    served.backend("bad").hangs = ("create_volume", "get_volume")
    creating = rpc == "CreateVolume"
    hung = (
        (lambda number: client.CreateVolume(**wanted(f"h{number}"), timeout=30))
        if creating
        else (lambda _number: client.ControllerGetVolume(volume_id="bad/v", timeout=30))
    )
    behind(callers, CALLERS, hung)
    assert served.backend("bad").inside.acquire(timeout=10)

    def call(number: int) -> None:
        for step in range(3):
            began = time.monotonic()
            RPCS[rpc](client, wanted)(number * 10 + step)
            took.append(time.monotonic() - began)

    ends = callers(CALLERS, call)
    served.backend("bad").go.set()

    assert ends == {Code.OK: CALLERS}
    took.sort()
    record_property("p99", took[len(took) * 99 // 100])


def test_what_waits_for_an_instance_that_hangs_is_cut_off(
    serve: Any, make: Any, wanted: Any, callers: Any, behind: Any, hanging: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission, "HANGING_AFTER", 0.5)
    kind = type(hanging().backend("bad"))
    served = serve(make("good"), make("bad", kind), workers=16)
    served.backend("bad").hangs = ("create_volume",)

    refused = threading.Semaphore(0)

    def call(number: int) -> None:
        try:
            served.client.CreateVolume(**wanted(f"h{number}"), timeout=60)
        except grpc.RpcError:
            refused.release()
            raise

    def end_hang() -> None:
        for _ in range(35):
            refused.acquire(timeout=60)
        served.backend("bad").go.set()

    behind(end_hang)

    assert callers(40, call) == {Code.OK: 5, Code.UNAVAILABLE: 35}


def test_an_rpc_does_not_wait_longer_than_its_caller(
    serve: Any, make: Any, wanted: Any, callers: Any, hanging: Any
) -> None:
    kind = type(hanging().backend("bad"))
    served = serve(make("good"), make("bad", kind), workers=8)
    served.backend("bad").hangs = ("create_volume",)
    callers(20, lambda number: served.client.CreateVolume(**wanted(f"h{number}"), timeout=1))
    end = time.monotonic() + 10

    while served.waiting():
        assert time.monotonic() < end
        time.sleep(0.05)

    served.backend("bad").go.set()
