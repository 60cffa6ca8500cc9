"""The loop devices of volumes: on one node, one, the right one, and none left behind."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import (
    Blank,
    ExpandRequest,
    FailedPrecondition,
    InUse,
    NotFound,
    OpenRequest,
    SizeRange,
    Unavailable,
)
from csi_multi.host import loopdev, sysfs
from csi_multi.host.command import LocalHost
from csi_multi.host.loopfile import LoopDevices

from csi_multi_filer import client as client_module
from csi_multi_filer.client import MARK, Client

pytestmark = pytest.mark.root
MIB = 2**20


@pytest.fixture
def handle(backend: Any, volume_request: Any) -> str:
    return backend.create_volume(volume_request("pvc-1")).handle


def test_a_device_shows_the_volume_and_proves_which_it_is(backend: Any, handle: str, share: Path) -> None:
    device = backend.open_device(OpenRequest(handle=handle))

    sysfs.verify(device)
    assert device.proof == {"loop/backing_file": f"{share}/pvc-1.filer"}
    assert sysfs.size_of(device.number) == MIB
    assert backend.open_device(OpenRequest(handle=handle)) == backend.find_device(handle) == device
    backend.close_device(handle)
    backend.close_device(handle)
    assert backend.find_device(handle) is None
    assert loopdev.find(share / "pvc-1.filer") == []


def test_an_open_volume_is_neither_deleted_nor_copied(backend: Any, handle: str, volume_request: Any) -> None:
    backend.open_device(OpenRequest(handle=handle))

    for attempt in (
        lambda: backend.delete_volume(handle, {}),
        lambda: backend.clone_volume(volume_request("clone", of=handle)),
    ):
        with pytest.raises(InUse):
            attempt()
    with pytest.raises(NotFound):
        backend.find_volume("clone")
    backend.close_device(handle)


def test_a_mounted_device_is_not_closed(backend: Any, handle: str, tmp_path: Path) -> None:
    device = backend.open_device(OpenRequest(handle=handle))
    LocalHost().run("mkfs.ext4", "-q", str(device.path))
    LocalHost().run("mount", str(device.path), str(tmp_path))

    with pytest.raises(InUse):
        backend.close_device(handle)
    with pytest.raises(InUse):
        backend.open_device(OpenRequest(handle=handle, read_only=True))
    assert backend.open_device(OpenRequest(handle=handle)).path == device.path

    LocalHost().run("umount", str(tmp_path))
    assert backend.find_device(handle) == device, "it was not marked to go with the mount"
    backend.close_device(handle)


def test_a_device_that_is_not_in_use_changes_between_read_only_and_writable(
    backend: Any, handle: str, share: Path
) -> None:
    for read_only in (False, True, False):
        device = backend.open_device(OpenRequest(handle=handle, read_only=read_only))

        assert sysfs.read_only(device.number) == device.read_only == read_only
        assert loopdev.find(share / "pvc-1.filer") == [device.path]
    backend.close_device(handle)


def test_a_second_device_of_an_image_is_detached(backend: Any, handle: str, share: Path) -> None:
    for _ in range(2):  # as after a losetup that timed out, and attached nevertheless
        loopdev.attach(LocalHost(), share / "pvc-1.filer")

    device = backend.open_device(OpenRequest(handle=handle))

    assert loopdev.find(share / "pvc-1.filer") == [device.path]
    backend.close_device(handle)


def test_of_two_devices_the_one_in_use_stays(backend: Any, handle: str, share: Path) -> None:
    image = share / "pvc-1.filer"
    for used in (0, -1):
        while len(loopdev.find(image)) < 2:
            loopdev.attach(LocalHost(), image)
        device = loopdev.find(image)[used]
        user = os.open(device, os.O_RDONLY | os.O_EXCL)
        try:
            assert backend.open_device(OpenRequest(handle=handle)).path == device
        finally:
            os.close(user)
        assert loopdev.find(image) == [device]
    backend.close_device(handle)


def test_a_device_that_is_being_detached_is_not_opened(
    backend: Any, handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopdev, "DETACH_TIMEOUT", 0.1)
    device = backend.open_device(OpenRequest(handle=handle))

    with device.path.open("rb"):
        for attempt in (lambda: backend.close_device(handle), lambda: backend.open_device(OpenRequest(handle=handle))):
            with pytest.raises(InUse, match="held open by a process"):
                attempt()

    assert backend.find_device(handle) is None
    backend.open_device(OpenRequest(handle=handle))
    backend.close_device(handle)


def test_a_device_of_a_file_that_was_replaced_is_not_the_volumes(
    backend: Any, handle: str, share: Path, volume_request: Any
) -> None:
    backend.open_device(OpenRequest(handle=handle))
    for file in share.glob("pvc-1.*"):
        file.unlink()
    backend.create_volume(volume_request("pvc-1"))

    fresh = backend.open_device(OpenRequest(handle=handle))

    assert loopdev.is_bound_to(fresh.path, share / "pvc-1.filer")
    assert loopdev.find(share / "pvc-1.filer") == [fresh.path]
    backend.close_device(handle)


def test_an_open_device_grows_with_its_volume(backend: Any, handle: str) -> None:
    device = backend.open_device(OpenRequest(handle=handle))

    for size, show in (
        (2 * MIB, lambda: backend.refresh_device(handle)),
        (3 * MIB, lambda: backend.open_device(OpenRequest(handle=handle))),
    ):
        assert backend.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=size))).node_required
        show()
        assert sysfs.size_of(device.number) == size
    backend.close_device(handle)


def test_the_format_state_says_whether_it_may_be_formatted(
    backend: Any, handle: str, share: Path, connect: Any, volume_request: Any
) -> None:
    def blank() -> Blank:
        device = connect(share).open_device(OpenRequest(handle=handle))
        if device.blank is Blank.ZEROED:
            assert not any(device.path.read_bytes())
        return device.blank

    assert blank() is Blank.ZEROED
    backend.formatting(handle)
    assert blank() is Blank.INTERRUPTED
    for _ in range(2):
        backend.formatted(handle)
        assert blank() is Blank.NEVER
    with pytest.raises(FailedPrecondition):
        backend.formatting(handle)
    assert blank() is Blank.NEVER
    backend.close_device(handle)


def test_a_clone_is_never_blank(backend: Any, handle: str, volume_request: Any) -> None:
    clone = backend.clone_volume(volume_request("clone", of=handle)).handle

    assert backend.open_device(OpenRequest(handle=clone)).blank is Blank.NEVER
    backend.close_device(clone)


def test_what_is_written_to_the_device_is_in_the_image_and_gone_with_the_volume(
    backend: Any, handle: str, share: Path
) -> None:
    device = backend.open_device(OpenRequest(handle=handle))
    with device.path.open("r+b") as disk:
        disk.write(b"hello")
        disk.flush()
        os.fsync(disk.fileno())

    assert (share / "pvc-1.filer").read_bytes()[:5] == b"hello"
    backend.close_device(handle)
    backend.delete_volume(handle, {})
    assert os.listdir(share) == [MARK]


def test_a_volume_is_open_on_one_node_at_a_time(backend: Any, handle: str, share: Path, connect: Any) -> None:
    other = connect(share, node="node-2")
    backend.open_device(OpenRequest(handle=handle))

    with pytest.raises(InUse, match="is open on node 'node-1'"):
        other.open_device(OpenRequest(handle=handle))
    with pytest.raises(InUse, match="is open on node 'node-1'"):
        other.delete_volume(handle, {})

    backend.close_device(handle)
    assert other.open_device(OpenRequest(handle=handle))
    with pytest.raises(InUse, match="is open on node 'node-2'"):
        backend.open_device(OpenRequest(handle=handle))
    other.close_device(handle)


def test_a_volume_of_a_node_that_was_declared_out_of_service_is_taken_over_where_that_is_wanted(
    backend: Any, handle: str, share: Path, connect: Any
) -> None:
    device = backend.open_device(OpenRequest(handle=handle))
    loopdev.detach(LocalHost(), device.path)  # the node is switched off
    gone = {"node": "node-2", "out_of_service": lambda node: node == "node-1"}
    with pytest.raises(InUse, match="is open on node 'node-1'"):
        connect(share, **gone).open_device(OpenRequest(handle=handle))
    with pytest.raises(InUse, match="is open on node 'node-1'"):
        connect(share, node="node-2", take_over=True).open_device(OpenRequest(handle=handle))

    other = connect(share, take_over=True, **gone)
    other.open_device(OpenRequest(handle=handle))
    backend.resume()

    assert holder(share) == "node-2", "the node that comes back leaves it alone"
    with pytest.raises(InUse, match="is open on node 'node-2'"):
        backend.open_device(OpenRequest(handle=handle))
    other.close_device(handle)


def test_a_volume_stays_where_it_is_while_the_orchestrator_does_not_tell(
    backend: Any, handle: str, share: Path, connect: Any
) -> None:
    def no_answer(node: str) -> bool:
        raise Unavailable(f"node {node}: no answer")

    backend.open_device(OpenRequest(handle=handle))

    with pytest.raises(Unavailable, match="node-1: no answer"):
        connect(share, node="node-2", take_over=True, out_of_service=no_answer).open_device(OpenRequest(handle=handle))
    assert holder(share) == "node-1"
    backend.close_device(handle)


def test_a_node_that_was_restarted_gives_back_what_it_held_and_no_other_node_does(
    backend: Any, handle: str, share: Path, connect: Any
) -> None:
    device = backend.open_device(OpenRequest(handle=handle))
    backend.resume()
    assert holder(share) == "node-1", "the device is there"
    loopdev.detach(LocalHost(), device.path)  # as by a restart

    connect(share, node="node-2").resume()
    assert holder(share) == "node-1", "another node knows nothing about it"
    connect(share, serves_node=False).resume()
    assert holder(share) == "node-1", "a controller has the name of its node, and does not see its devices"
    connect(share, controller=False).resume()
    assert holder(share) == ""


def test_an_attempt_to_open_that_fails_leaves_the_volume_to_other_nodes(
    backend: Any, handle: str, share: Path, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Path:
        raise InUse("the kernel is busy with it")

    with monkeypatch.context() as patch:
        patch.setattr(LoopDevices, "open", refused)
        with pytest.raises(InUse, match="the kernel is busy"):
            backend.open_device(OpenRequest(handle=handle))
    assert holder(share) == ""

    other = connect(share, node="node-2")
    other.open_device(OpenRequest(handle=handle))
    other.close_device(handle)


def test_an_attempt_to_open_that_fails_with_a_device_keeps_other_nodes_away(
    backend: Any, handle: str, share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = LoopDevices.open

    def attached(*args: Any, **options: Any) -> Path:
        attach(*args, **options)
        raise Unavailable("it has no answer yet")

    monkeypatch.setattr(LoopDevices, "open", attached)
    with pytest.raises(Unavailable, match="no answer yet"):
        backend.open_device(OpenRequest(handle=handle))

    assert holder(share) == "node-1"
    backend.close_device(handle)
    assert holder(share) == ""


def test_what_a_start_could_not_do_without_the_share_is_done_when_it_is_mounted(
    backend: Any, handle: str, share: Path, connect: Any
) -> None:
    loopdev.detach(LocalHost(), backend.open_device(OpenRequest(handle=handle)).path)  # as by a restart
    (share / "half.filer").touch()
    (share / MARK).rename(share / "unmounted")
    started = connect(share)
    for attempt in (started.resume, started.check):
        with pytest.raises(Unavailable, match="mount the share there"):
            attempt()

    (share / "unmounted").rename(share / MARK)
    started.check()
    assert holder(share) == ""
    assert not (share / "half.filer").exists()

    (share / "half.filer").touch()
    started.check()
    assert (share / "half.filer").exists(), "it is repeated until it succeeded, and no longer"


def test_on_a_share_that_hangs_an_open_device_is_found_to_be_unmounted_and_nothing_waits_for_ever(
    backend: Any, handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = backend.open_device(OpenRequest(handle=handle))
    answered = threading.Event()
    read = Client.read_label

    def hang(client: Client, leaf: str) -> bytes | None:
        answered.wait()
        return read(client, leaf)

    with monkeypatch.context() as patch:
        patch.setattr(client_module, "ANSWER_SECONDS", 0.2)
        patch.setattr(Client, "read_label", hang)
        try:
            assert backend.find_device(handle) == replace(device, blank=Blank.NEVER), "it is never formatted then"
            with pytest.raises(Unavailable, match="did not answer"):
                backend.close_device(handle)
        finally:
            answered.set()
    while True:
        with suppress(Unavailable):  # until the question that hung has its answer
            backend.close_device(handle)
            break
    assert backend.find_device(handle) is None


def holder(share: Path) -> str:
    return (share / "pvc-1.filer.open").read_text()


def test_only_a_process_with_the_controller_cleans_the_directory(share: Path, connect: Any) -> None:
    (share / "half.filer").touch()

    connect(share, controller=False).resume()
    assert (share / "half.filer").exists()
    connect(share).resume()
    assert not (share / "half.filer").exists()
