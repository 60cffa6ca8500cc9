"""Whatever a backend raises, the caller gets an answer, the log names the backend, and the thread continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import BlockMap, Extent, ResourceExhausted
from csi_multi.loading.registry import Registry

Code = grpc.StatusCode


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class Odd(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Final(BaseException):
    __slots__ = ()


class MuteAndFull(ResourceExhausted):
    def __str__(self) -> str:
        raise SystemExit(1)


class Raising(MemoryBackend):
    error: BaseException | type[BaseException] | None = None

    def create_volume(self, request: Any) -> Any:
        if self.error is RecursionError:
            return self._deeper(request)
        if self.error:
            raise self.error
        return super().create_volume(request)

    def _deeper(self, request: Any) -> Any:
        return self._deeper(request)

    def allocated_blocks(self, handle: str, offset: int, secrets: Any) -> BlockMap:
        def extents() -> Iterator[Extent]:
            yield Extent(offset=0, length=4096)
            assert self.error
            raise self.error

        return BlockMap(size=1 << 30, extents=extents() if self.error is not GeneratorExit else Stopping())


class Stopping:
    """An iterator that behaves as if the caller had gone away."""

    def __iter__(self) -> Stopping:
        return self

    def __next__(self) -> Extent:
        raise GeneratorExit


ERRORS = [
    *(
        KeyError("k"),
        SystemExit(3),
        KeyboardInterrupt(),
        MemoryError(),
        RecursionError,
        GeneratorExit(),
        StopIteration(),
    ),
    *(Mute(), Odd(), Final(), ExceptionGroup("both", [ValueError("a"), Mute()]), OSError("\udcff"), AssertionError()),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: one.__name__ if isinstance(one, type) else type(one).__name__)
def test_anything_outside_of_the_tree_of_errors_is_a_bug_with_the_name_of_its_package_in_the_log(
    error: Any, beside: Any, wanted: Any, refused: Any, serves: Any, errors: Any
) -> None:
    served = beside(Raising, workers=8)
    served.backend("bad").error = error
    name = error.__name__ if isinstance(error, type) else type(error).__name__

    for _ in range(10):  # more often than there are threads
        refusal = refused(served.client.CreateVolume, **wanted("v"))

    assert refusal.code is Code.UNAVAILABLE  # not final: something may have been created
    line = errors()[-1]
    assert line["error_id"] in refusal.text
    facts = (line["instance"], line["kind"], line["package"], line["method"])
    assert facts == ("bad", "Raising", "module tests.hostile.test_failures", "create_volume")
    assert name in line["traceback"]
    assert not served.registry.running_rpcs()
    serves(served.client)
    served.backend("bad").error = None
    serves(served.client, "bad")


def test_an_error_of_the_tree_that_cannot_say_its_text_keeps_its_code(
    beside: Any, wanted: Any, refused: Any, serves: Any
) -> None:
    served = beside(Raising)
    served.backend("bad").error = MuteAndFull()

    refusal = refused(served.client.CreateVolume, **wanted("v"))

    assert refusal.code is Code.RESOURCE_EXHAUSTED
    assert refusal.text == "MuteAndFull (its text cannot be read: SystemExit)"
    serves(served.client)


def test_a_text_that_no_wire_carries_keeps_its_code(beside: Any, wanted: Any, refused: Any) -> None:
    served = beside(Raising)
    served.backend("bad").error = ResourceExhausted("pool \udcff is full")

    refusal = refused(served.client.CreateVolume, **wanted("v"))

    assert (refusal.code, refusal.text) == (Code.RESOURCE_EXHAUSTED, "pool ? is full")


@pytest.mark.parametrize("error", [KeyError("k"), SystemExit(1), GeneratorExit], ids=str)
def test_a_failure_in_the_middle_of_a_stream_ends_it_with_a_status(
    error: Any, beside: Any, wanted: Any, refused: Any, serves: Any, errors: Any
) -> None:
    served = beside(Raising)
    served.client.CreateVolume(**wanted("v"))
    served.client.CreateSnapshot(name="s", source_volume_id="bad/v")
    served.backend("bad").error = error

    refusal = refused(served.client.GetMetadataAllocated, snapshot_id="bad/s")

    assert refusal.code is Code.INTERNAL
    assert (errors()[-1]["instance"], errors()[-1]["method"]) == ("bad", "allocated_blocks")
    assert not served.registry.running_rpcs()
    serves(served.client)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Mute()], ids=lambda one: type(one).__name__)
def test_a_check_that_raises_anything_makes_the_instance_degraded_and_is_asked_again(
    error: BaseException, make: Any, stream: Any
) -> None:
    class Moody(MemoryBackend):
        mood: BaseException | None = error

        def check(self) -> None:
            if self.mood:
                raise self.mood

        resume = close = check

    bad = make("bad", Moody)
    registry = Registry([bad, make("good")])
    bad.resume()
    bad.check()
    bad.close()

    assert list(registry.degraded()) == ["bad"]
    traces = [json.loads(line).get("traceback", "") for line in stream.getvalue().splitlines()]
    assert any("backend 'bad' (module tests.hostile.test_failures): check raised" in trace for trace in traces)
    bad.backend.mood = None
    bad.check()
    assert not registry.degraded()
