"""An image file that was created by hand is imported with its data, keeps its name, and can be released."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from csi_multi_loop.backend import LoopBackend

from csi_multi.contract import (
    IMPORTED,
    AlreadyExists,
    Blank,
    DryRunReport,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    OpenRequest,
    ResourceExhausted,
    Stamp,
    StorageError,
)
from csi_multi.host import loopdev

from .conftest import DRIVER, MIB, Requests
from .test_explain import comparable_changes, file_states, recorded_changes, reported_changes

Connect = Callable[..., LoopBackend]


def stamp(name: str = "old-data", **context: str) -> Stamp:
    return Stamp(driver=DRIVER, cluster="c", name=name, digest=IMPORTED, context=context)


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    """An operator's image, with data in it."""
    file = tmp_path / "vm.img"
    file.write_bytes(b"data" + bytes(4 * MIB - 4))
    return file


def test_an_imported_file_is_a_volume_with_its_data(backend: LoopBackend, image_file: Path) -> None:
    made = backend.import_volume(str(image_file), stamp(fsType="ext4"))

    assert made == backend.get_volume(made.handle) == backend.find_volume("old-data")
    assert (made.handle, made.size) == ("node-1/old-data", 4 * MIB)
    assert made.stamp.imported
    assert image_file.read_bytes()[:4] == b"data"


def test_an_imported_volume_is_never_deleted_and_the_error_names_the_release(
    backend: LoopBackend, image_file: Path
) -> None:
    made = backend.import_volume(str(image_file), stamp())

    with pytest.raises(FailedPrecondition, match="csi-multi import --release"):
        backend.delete_volume(made.handle, {})
    assert backend.get_volume(made.handle) == made


def test_a_released_file_is_what_it_was(backend: LoopBackend, image_file: Path) -> None:
    before = (image_file.read_bytes(), image_file.stat().st_mtime_ns, image_file.stat().st_nlink)
    made = backend.import_volume(str(image_file), stamp())

    backend.release_volume(made.handle)

    assert (image_file.read_bytes(), image_file.stat().st_mtime_ns, image_file.stat().st_nlink) == before
    with pytest.raises(NotFound):
        backend.get_volume(made.handle)


def test_importing_it_again_is_the_same_volume(backend: LoopBackend, connect: Connect, image_file: Path) -> None:
    made = backend.import_volume(str(image_file), stamp())

    assert connect().import_volume(str(image_file), stamp()) == made


def test_an_expansion_keeps_it_imported(backend: LoopBackend, requests: Requests, image_file: Path) -> None:
    made = backend.import_volume(str(image_file), stamp())

    backend.expand_volume(requests.expand(made.handle, 8 * MIB))

    assert image_file.stat().st_size == 8 * MIB
    with pytest.raises(FailedPrecondition):
        backend.delete_volume(made.handle, {})


def test_a_file_that_lost_its_other_name_is_not_released(backend: LoopBackend, image_file: Path) -> None:
    made = backend.import_volume(str(image_file), stamp())
    image_file.unlink()

    with pytest.raises(FailedPrecondition, match="only name"):
        backend.release_volume(made.handle)
    assert backend.get_volume(made.handle) == made


def test_a_volume_of_the_drivers_own_is_not_released(backend: LoopBackend, requests: Requests) -> None:
    made = backend.create_volume(requests.volume("pvc-1"))

    with pytest.raises(FailedPrecondition, match="not imported"):
        backend.release_volume(made.handle)
    assert backend.get_volume(made.handle) == made


def directory(file: Path, _: LoopBackend) -> str:
    return str(file.parent)


def link(file: Path, _: LoopBackend) -> str:
    file.with_name("link").symlink_to(file)
    return str(file.with_name("link"))


def second_name(file: Path, _: LoopBackend) -> str:
    os.link(file, file.with_name("second"))
    return str(file)


def odd_size(file: Path, _: LoopBackend) -> str:
    os.truncate(file, 1000)
    return str(file)


def empty(file: Path, _: LoopBackend) -> str:
    os.truncate(file, 0)
    return str(file)


def qcow(file: Path, _: LoopBackend) -> str:
    file.write_bytes(b"QFI\xfb" + bytes(MIB - 4))
    return str(file)


def own(_: Path, backend: LoopBackend) -> str:
    made = backend.create_volume(Requests().volume("pvc-1"))
    return f"{backend.config.directory}/volumes/{made.handle.partition('/')[2]}/image"


def huge(file: Path, _: LoopBackend) -> str:
    os.truncate(file, 2**43)
    return str(file)


@pytest.mark.parametrize(
    ("prepare", "kind", "words"),
    [
        (lambda *_: "vm.img", InvalidArgument, "absolute path"),
        (lambda *_: "/no/such/file", NotFound, "does not exist"),
        (directory, InvalidArgument, "not a regular file"),
        (link, InvalidArgument, "not a regular file"),
        (second_name, FailedPrecondition, "2 names"),
        (odd_size, FailedPrecondition, "multiple of 512"),
        (empty, FailedPrecondition, "multiple of 512"),
        (qcow, FailedPrecondition, "qemu-img convert"),
        (own, AlreadyExists, "directory of this instance"),
        (huge, ResourceExhausted, "do not fit"),
        (lambda *_: "/proc/version", FailedPrecondition, "another filesystem"),
    ],
)
def test_what_cannot_become_a_volume_is_refused_and_left_alone(
    backend: LoopBackend,
    image_file: Path,
    tmp_path: Path,
    prepare: Callable[[Path, LoopBackend], str],
    kind: type[StorageError],
    words: str,
) -> None:
    backend.resume()
    name = prepare(image_file, backend)
    before = file_states(tmp_path)

    with pytest.raises(kind, match=words):
        backend.dry_run(DryRunReport()).import_volume(name, stamp())  # type: ignore[attr-defined]
    assert file_states(tmp_path) == before
    with pytest.raises(kind, match=words):
        backend.import_volume(name, stamp())
    assert not (tmp_path / "pool" / "volumes" / "old-data").exists()


def test_a_file_that_a_process_has_open_is_refused(backend: LoopBackend, image_file: Path) -> None:
    with image_file.open("rb"), pytest.raises(InUse, match=r"a process has /.*/vm\.img open"):
        backend.import_volume(str(image_file), stamp())
    assert backend.import_volume(str(image_file), stamp()).size == 4 * MIB


def test_a_name_that_is_taken_is_refused(backend: LoopBackend, requests: Requests, image_file: Path) -> None:
    backend.create_volume(requests.volume("old-data"))

    with pytest.raises(AlreadyExists, match="another name"):
        backend.import_volume(str(image_file), stamp())


def test_a_dry_run_reports_what_an_import_does_and_does_nothing(
    backend: LoopBackend, image_file: Path, tmp_path: Path
) -> None:
    backend.resume()
    before, report = file_states(tmp_path), DryRunReport()
    dry_run = backend.dry_run(report)
    assert isinstance(dry_run, LoopBackend)

    expected = dry_run.import_volume(str(image_file), stamp())
    assert file_states(tmp_path) == before

    with recorded_changes() as events:
        made = backend.import_volume(str(image_file), stamp())
    assert made == expected
    assert reported_changes(report) == comparable_changes(events)


def test_a_dry_run_reports_what_a_release_does_and_does_nothing(
    backend: LoopBackend, image_file: Path, tmp_path: Path
) -> None:
    made = backend.import_volume(str(image_file), stamp())
    before, report = file_states(tmp_path), DryRunReport()
    dry_run = backend.dry_run(report)
    assert isinstance(dry_run, LoopBackend)

    dry_run.release_volume(made.handle)

    assert file_states(tmp_path) == before
    assert [step.words[0] for step in report.steps] == ["mv", "sync", "rm"]


def test_an_import_that_died_anywhere_is_made_once_and_loses_nothing(
    connect: Connect, crash: Any, leftovers: Callable[[LoopBackend], list[str]], tmp_path: Path
) -> None:
    def prepare(call: int) -> Callable[[], object]:
        file = tmp_path / f"vm-{call}.img"
        file.write_bytes(b"data" + bytes(MIB - 4))
        backend = connect(tmp_path / "pool")
        backend.resume()
        return lambda: backend.import_volume(str(file), stamp(f"old-{call}"))

    for call in crash.points(prepare):
        file, backend = tmp_path / f"vm-{call}.img", connect(tmp_path / "pool")
        made = backend.import_volume(str(file), stamp(f"old-{call}"))

        assert file.read_bytes()[:4] == b"data"
        assert leftovers(backend) == []
        backend.release_volume(made.handle)
        assert file.stat().st_nlink == 1


@pytest.mark.root
def test_its_device_shows_its_data_and_is_never_blank(backend: LoopBackend, image_file: Path) -> None:
    made = backend.import_volume(str(image_file), stamp())
    device = backend.open_device(OpenRequest(handle=made.handle))
    try:
        assert device.blank is Blank.NEVER
        assert device.path.read_bytes()[:4] == b"data"
        with pytest.raises(InUse, match="attached"):
            backend.release_volume(made.handle)
    finally:
        backend.close_device(made.handle)


@pytest.mark.root
def test_a_file_that_is_attached_by_hand_is_refused(backend: LoopBackend, image_file: Path, host: Any) -> None:
    device = loopdev.attach(host, image_file)
    try:
        with pytest.raises(InUse, match="losetup -d"):
            backend.import_volume(str(image_file), stamp())
    finally:
        loopdev.detach(host, device)
