"""A driver with a hostile instance and a good one, and a check that the good one serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from csi_multi_testing.memory import MemoryBackend

MOUNT = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}


@pytest.fixture(scope="session")
def wanted() -> Callable[..., dict[str, Any]]:
    """wanted("v", "good") are the fields of a CreateVolume request."""
    return lambda name, backend="bad": {
        "name": name,
        "volume_capabilities": [MOUNT],
        "parameters": {"backend": backend},
    }


@pytest.fixture
def beside(serve: Any, make: Any) -> Callable[..., Any]:
    """beside(Kind) serves an instance `bad` of that kind, and an instance `good` in memory."""
    return lambda kind, **fields: serve(make("bad", kind), make("good"), **fields)


@pytest.fixture
def serves(wanted: Any) -> Callable[..., None]:
    """Assert that an instance serves a whole lifecycle, and waits for nothing that hangs (`Hanging`: 30 s)."""

    def whole_life(client: Any, name: str = "good") -> None:
        volume = client.CreateVolume(**wanted("alive", name), timeout=20).volume.volume_id
        assert client.ControllerGetVolume(volume_id=volume, timeout=20).volume.volume_id == volume
        client.CreateSnapshot(name="alive", source_volume_id=volume, timeout=20)
        listed = client.ListSnapshots(source_volume_id=volume, timeout=20).entries
        assert [one.snapshot.source_volume_id for one in listed] == [volume]
        assert client.GetCapacity(parameters={"backend": name}, timeout=20).available_capacity
        client.DeleteSnapshot(snapshot_id=f"{name}/alive", timeout=20)
        client.DeleteVolume(volume_id=volume, timeout=20)

    return whole_life


@pytest.fixture
def errors(stream: Any) -> Callable[[], list[dict[str, Any]]]:
    """Return the lines that were logged at level error so far."""

    def lines() -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in stream.getvalue().splitlines()]
        return [row for row in rows if row["level"] == "error"]

    return lines


@pytest.fixture
def behind() -> Iterator[Callable[..., Future[Any]]]:
    """Make a call in a thread."""
    with ThreadPoolExecutor(64) as pool:
        yield pool.submit


class Hanging(MemoryBackend):
    """Every method named in `hangs` waits until a test releases it."""

    hangs: tuple[str, ...] = ()

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.inside = threading.Semaphore(0)
        self.go = threading.Event()

    def wait(self, name: str) -> None:
        if name in self.hangs and not self.go.is_set():
            self.inside.release()
            self.go.wait(30)


def _waiting(name: str) -> Any:
    def method(self: Any, *words: Any) -> Any:
        self.wait(name)
        return getattr(MemoryBackend, name)(self, *words)

    return method


for _name in ("create_volume", "get_volume", "list_volumes", "capacity", "allocated_blocks", "find_device"):
    setattr(Hanging, _name, _waiting(_name))


@pytest.fixture
def hanging(beside: Any) -> Iterator[Callable[..., Any]]:
    """hanging("create_volume") serves `bad`, in which this method hangs, and `good`."""
    made: list[Any] = []

    def serve(*names: str, **fields: Any) -> Any:
        made.append(beside(Hanging, **fields))
        made[-1].backend("bad").hangs = names
        return made[-1]

    yield serve
    for served in made:
        served.backend("bad").go.set()
