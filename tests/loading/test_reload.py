"""A changed configuration is taken over by the running driver: all of it or nothing, and no call notices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.config.settings import Config, load_config
from csi_multi.contract import Backend
from csi_multi.host.command import LocalHost
from csi_multi.loading import loader
from csi_multi.loading.loader import load_instances
from csi_multi.loading.registry import Registry
from csi_multi.loading.reload import ConfigReloader, file_state
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.server import build_server

MOUNT = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
KIND = """
import threading
from csi_multi_testing.memory import MemoryBackend

class Own(MemoryBackend):
    def __init__(self, *words):
        super().__init__(*words)
        self.closed, self.inside, self.go = threading.Event(), threading.Event(), threading.Event()
        self.checked = threading.Semaphore(0)
    def create_volume(self, request):
        if request.stamp.name == "slow":
            self.inside.set()
            self.go.wait(30)
        assert not self.closed.is_set()
        return super().create_volume(request)
    def check(self):
        self.checked.release()
    def close(self):
        self.closed.set()
"""
BAD_KIND = (
    KIND
    + """
class Bad(Own):
    def __init__(self, *words):
        raise KeyError("library")
"""
)
PLAIN_KIND = """
from csi_multi.contract.backend import Backend
from csi_multi.contract.errors import NotFound
class Own(Backend):
    contract = (1, 0)
    def create_volume(self, request): raise NotFound("x")
    find_volume = get_volume = find_device = close_device = create_volume
    def delete_volume(self, handle, secrets): raise NotFound("x")
    def open_device(self, request): raise NotFound("x")
"""
HEAD = "driver: {name: reload.csi-multi.example, node: n1, default_backend: %s%s}\nbackends:\n"


class World:
    """A driver over one file, without a process around it."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "config.yaml"
        self.directory = directory

    def write(self, *backends: str, default: str = "a", driver: str = "") -> None:
        """Write a file: "a" for an instance of that name, "a: {kind: good, capacity: 5}" for one with settings."""
        lines = [f"  {one}" if ":" in one else f"  {one}: {{kind: good}}" for one in backends]
        self.file.write_text(HEAD % (default, driver) + "\n".join(lines) + "\n")

    def start(self, *replaced_meanwhile: str) -> None:
        """Start as `serve` does; with arguments, the file is written anew while the instances are made."""
        loaded = file_state(self.file)
        settings = load_config(self.file)
        self.registry = load_instances(settings, LocalHost())
        if replaced_meanwhile:
            self.write(*replaced_meanwhile)
        self.reload = ConfigReloader(self.file, loaded, settings, self.registry, self._make)

    def serve(self) -> Client:
        self.server = build_server(self.reload.settings.driver, self.registry, LocalHost(), Mode.ALL)
        assert self.server.add_insecure_port(f"unix:{self.directory}/s.sock")
        self.server.start()
        self.client = Client(f"unix:{self.directory}/s.sock", timeout=20)
        return self.client

    def _make(self, wanted: Config, kept: Any) -> Registry:
        return load_instances(wanted, LocalHost(), kept=kept)

    def backend(self, name: str) -> Any:
        return self.registry.get(name).backend

    def names(self) -> list[str]:
        return sorted(one.name for one in self.registry)


@pytest.fixture
def world(tmp_path: Path, install: Callable[..., str]) -> Any:
    install("good", KIND)
    install("bad", BAD_KIND, "Bad")
    install("plain", PLAIN_KIND)
    made = World(tmp_path)
    made.write("a", "b")
    made.start()
    yield made
    made.registry.close()
    if hasattr(made, "server"):
        made.client.close()
        made.server.stop(0).wait()


def volume(client: Any, name: str, backend: str) -> str:
    answer = client.CreateVolume(name=name, volume_capabilities=[MOUNT], parameters={"backend": backend})
    return str(answer.volume.volume_id)


def test_a_file_that_is_replaced_while_the_driver_starts_is_taken_over(world: World) -> None:
    world.registry.close()
    world.start("a", "b", "added")
    assert world.names() == ["a", "b"]

    world.reload.check_file()  # the first look finds it changed, the second that it is written completely
    world.reload.check_file()

    assert world.names() == ["a", "added", "b"]


def test_an_instance_that_did_not_change_is_kept_as_it_is(world: World) -> None:
    before = world.registry.get("a")
    world.write("a", "c")
    world.reload.reload()

    assert world.registry.get("a") is before
    assert not before.backend.closed.is_set()
    assert world.names() == ["a", "c"]


def test_a_changed_one_is_made_anew_and_the_one_before_is_closed(world: World) -> None:
    before = world.backend("b")
    world.write("a", "b: {kind: good, capacity: 5}")
    world.reload.reload()

    assert world.backend("b").config.capacity == 5
    assert before.closed.wait(10)


def test_a_removed_one_is_closed_and_its_ids_are_told_as_after_a_restart(world: World, refused: Any) -> None:
    client, gone = world.serve(), world.backend("b")
    kept = volume(client, "v", "b")
    world.write("a")
    world.reload.reload()

    assert gone.closed.wait(10)
    assert refused(client.DeleteVolume, volume_id=kept).code is grpc.StatusCode.FAILED_PRECONDITION


def test_a_call_that_runs_ends_in_the_instance_where_it_began_which_is_closed_only_then(world: World) -> None:
    client, old = world.serve(), world.backend("b")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(volume, client, "slow", "b")
        assert old.inside.wait(10)
        world.write("a", "b: {kind: good, capacity: 5000000000}")
        world.reload.reload()
        world.write("a", "b: {kind: good, capacity: 6000000000}")
        world.reload.reload()
        assert volume(client, "quick", "b") == "b/quick"
        assert not old.closed.is_set()
        assert any("CreateVolume" in call for call in world.registry.running_rpcs())
        old.go.set()

        assert running.result(10) == "b/slow"
    assert old.closed.wait(10)


def test_a_call_keeps_open_what_came_and_went_while_it_ran(world: World) -> None:
    with world.registry.keep_open():
        world.write("a", "c")
        world.reload.reload()
        came = world.backend("c")
        world.write("a")
        world.reload.reload()
        leaving = [one for one in threading.enumerate() if one.name == "retire-c"]
        for thread in leaving:
            thread.join(0.2)
        assert not came.closed.is_set()

    assert came.closed.wait(10)


def test_at_the_end_of_the_process_what_was_left_behind_is_closed_too(world: World) -> None:
    client, old = world.serve(), world.backend("b")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(volume, client, "slow", "b")
        assert old.inside.wait(10)
        world.write("a")
        world.reload.reload()
        world.registry.close()
        assert old.closed.is_set()
        old.go.set()
        assert isinstance(running.exception(10), grpc.RpcError)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("driver: [", "config.yaml:1: not valid YAML"),
        (HEAD % ("a", "") + "  a: {kind: good, capacty: 5}\n", "did you mean 'capacity'?"),
        (HEAD % ("a", "") + "  a: {kind: god}\n", "did you mean 'good'?"),
        (HEAD % ("c", "") + "  a: {kind: good}\n", "driver.default_backend: unknown instance 'c'"),
        (
            HEAD % ("a", "") + "  a: {kind: good}\n  c: {kind: bad}\n",
            "config.yaml:4: backends.c: .*KeyError: 'library'",
        ),
        (HEAD % ("a", ", workers: 9") + "  a: {kind: good}\n", "driver.workers cannot change while the driver runs"),
        (HEAD % ("a", ", cluster: x") + "  a: {kind: good}\n", "driver.cluster cannot change while the driver runs"),
    ],
)
def test_a_bad_file_changes_nothing_and_the_log_says_why(world: World, stream: Any, file: str, reason: str) -> None:
    import re

    before = [world.registry.get(name) for name in ("a", "b")]
    world.file.write_text(file)
    world.reload.reload()

    assert not world.reload.successful
    assert re.search(reason, stream.getvalue().replace('\\"', '"')), stream.getvalue()
    assert [world.registry.get(name) for name in ("a", "b")] == before
    assert not any(one.backend.closed.is_set() for one in before)
    world.write("a")
    world.reload.reload()
    assert world.reload.successful


@pytest.mark.parametrize("file", ["driver: " + "[" * 1200, "\0", "driver: &a [*a]"])
def test_no_file_whatever_is_in_it_ends_the_driver(world: World, stream: Any, file: str) -> None:
    world.file.write_text(file)
    world.reload.reload()

    assert not world.reload.successful
    assert "the new configuration is not used" in stream.getvalue()
    assert world.names() == ["a", "b"]


def test_an_unexpected_error_of_a_reload_changes_nothing_and_the_next_one_succeeds(
    world: World, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced_just_now(*_: Any) -> Registry:
        raise PackageNotFoundError("csi-good")

    world.write("a")
    with monkeypatch.context() as patch:
        patch.setattr(world.reload, "_make", replaced_just_now)
        world.reload.reload()

    assert not world.reload.successful
    assert "the new configuration is not used" in stream.getvalue()
    assert world.names() == ["a", "b"]
    world.reload.reload()
    assert (world.reload.successful, world.names()) == (True, ["a"])


def test_a_part_of_the_instances_follows(world: World) -> None:
    subset = world.registry.subset(lambda backend: backend.setting.instance != "a")
    inner = subset.subset(lambda backend: isinstance(backend, Backend))
    world.write("a", "c")
    world.reload.reload()

    assert [one.name for one in subset] == ["c"]
    assert subset.get("c") is world.registry.get("c")
    assert [one.name for one in inner] == ["c"]
    with subset.keep_open():
        old = world.backend("c")
        world.write("a")
        world.reload.reload()
        assert not old.closed.is_set(), "an RPC of the part may be using it"
    assert old.closed.wait(10)
    assert list(subset) == []


@pytest.mark.parametrize("wrong", ["d: {kind: good, capacty: 5}", "d: {kind: bad}"])
def test_what_was_made_for_a_file_that_is_then_refused_is_closed(world: World, monkeypatch: Any, wrong: str) -> None:
    made: list[Any] = []
    make = loader._instance
    monkeypatch.setattr(loader, "_instance", lambda *words: made.append(make(*words)) or made[-1])
    world.write("a", "c", wrong)
    world.reload.reload()

    assert [one.name for one in made] == ["c"]
    assert made[0].backend.closed.is_set()


def test_an_instance_that_was_broken_before_is_no_reason_to_refuse(world: World) -> None:
    world.write("a", "c: {kind: bad}")
    world.start()
    assert world.registry.broken
    world.write("a", "b", "c: {kind: bad}")
    world.reload.reload()

    assert world.reload.successful
    assert world.names() == ["a", "b"]
    assert set(world.registry.broken) == {"c"}


def test_the_default_instance_can_change(world: World) -> None:
    client = world.serve()
    world.write("a", "b", default="b")
    world.reload.reload()

    answer = client.CreateVolume(name="v", volume_capabilities=[MOUNT])
    assert answer.volume.volume_id == "b/v"


def test_a_new_instance_brings_its_features(tmp_path: Path, world: World, refused: Any) -> None:
    world.write("p: {kind: plain}", default="p")
    world.start()
    client = world.serve()
    assert refused(client.CreateSnapshot, name="s", source_volume_id="p/v").code is grpc.StatusCode.UNIMPLEMENTED
    world.write("p: {kind: plain}", "a", default="p")
    world.reload.reload()

    source = volume(client, "v", "a")
    assert client.CreateSnapshot(name="s", source_volume_id=source).snapshot.snapshot_id == "a/s"
    assert "CREATE_DELETE_SNAPSHOT" in str(client.ControllerGetCapabilities())


def test_a_new_instance_is_checked_from_now_on_and_a_removed_one_no_more(world: World) -> None:
    world.registry.start(0.01)
    old = world.backend("b")
    assert old.checked.acquire(timeout=10)
    world.write("a", "c", driver=", check_seconds: 1")
    world.reload.reload()

    assert world.backend("c").checked.acquire(timeout=10)
    assert old.closed.wait(10)
    names = {f"check-{name}" for name in ("b",)}
    for thread in [one for one in threading.enumerate() if one.name in names]:
        thread.join(10)
        assert not thread.is_alive()


def test_a_changed_file_is_taken_at_the_second_look_that_finds_it_the_same(world: World) -> None:
    world.reload.check_file()
    world.write("a")
    world.reload.check_file()
    assert world.names() == ["a", "b"], "somebody may still be writing it"
    world.write("a", "b", "c")
    world.reload.check_file()
    assert world.names() == ["a", "b"]
    world.reload.check_file()

    assert world.names() == ["a", "b", "c"]


def test_a_link_that_is_pointed_elsewhere_is_a_change(world: World, tmp_path: Path) -> None:
    for number, names in ((1, ("a", "b")), (2, ("a",))):
        (tmp_path / f"..{number}").mkdir()
        world.write(*names)
        world.file.rename(tmp_path / f"..{number}/config.yaml")
    (tmp_path / "..data").symlink_to("..1")
    world.file.symlink_to("..data/config.yaml")
    world.start()
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    world.reload.check_file()
    world.reload.check_file()

    assert world.names() == ["a"]


def test_a_file_that_is_gone_changes_nothing_and_is_told_once(world: World, stream: Any) -> None:
    world.file.unlink()
    for _ in range(5):
        world.reload.check_file()

    assert not world.reload.successful
    assert world.names() == ["a", "b"]
    assert stream.getvalue().count("the new configuration is not used") == 1


def test_the_log_level_can_change(world: World, stream: Any) -> None:
    import logging

    world.write("a", "b", driver=", log_level: error")
    world.reload.reload()

    assert logging.getLogger().level == logging.ERROR


def test_a_reload_whose_checks_cannot_be_started_changes_nothing_and_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.registry.start(3600)
    before, kept = world.backend("b"), world.backend("a")
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("check-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    world.write("a", "b: {kind: good, capacity: 5}", "c")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        world.reload.reload()
    assert not world.reload.successful
    assert world.names() == ["a", "b"]
    assert world.backend("b") is before
    assert not before.closed.is_set()

    world.reload.reload()

    assert world.reload.successful
    assert world.backend("b").config.capacity == 5
    assert world.backend("a") is kept
    assert before.closed.wait(10)
    assert world.backend("c").checked.acquire(timeout=10)
