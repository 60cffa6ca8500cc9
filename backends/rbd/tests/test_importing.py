"""An image that was created by hand is imported with its data, and gets its name back when it is released."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.circuit_breaker import CircuitBreaker
from csi_multi_rbd.client import Client
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import Config
from csi_multi_rbd.importing import _refuse_ceph_csi

from csi_multi.contract import (
    IMPORTED,
    AlreadyExists,
    DryRunReport,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    Result,
    Setting,
    Stamp,
    StorageError,
)

from . import contents, volumes
from .ceph_commands import Commands
from .other_client import opened
from .volumes import MIB

Run = Callable[..., str]


class Died(BaseException):
    """The process ends here."""


class Mortal(CommandRunner):
    """Ends the process before a command with this word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def execute(self, program: str, *words: str, timeout: float, **more: Any) -> Result:
        if self._word in words:
            raise Died(self._word)
        return super().execute(program, *words, timeout=timeout, **more)


def stamp(name: str = "old-data") -> Stamp:
    return Stamp(driver="multi.csi.test", cluster="c", name=name, digest=IMPORTED, context={"fsType": "ext4"})


UUID = "0123abcd-0123-0123-0123-0123456789ab"


@pytest.fixture
def rbd(cluster: Commands, namespace: str) -> Run:
    """Run rbd by hand; {} stands for the place."""
    return lambda *words: cluster.rbd(*(word.format(f"{cluster.pool}/{namespace}") for word in words))


@pytest.fixture
def image(rbd: Run) -> str:
    """Somebody's image."""
    rbd("create", "{}/data", "--size", "24M")
    return "data"


def rbd_spec(config: Config, image: str) -> str:
    return f"{config.pool}/{config.namespace}/{image}"


def listed(rbd: Run) -> list[str]:
    return sorted(json.loads(rbd("ls", "{}", "--format", "json")))


def meta(rbd: Run, image: str) -> dict[str, str]:
    told: dict[str, str] = json.loads(rbd("image-meta", "list", f"{{}}/{image}", "--format", "json") or "{}")
    return told


def test_an_imported_image_is_a_volume_until_it_is_released(backend: RbdBackend, rbd: Run, image: str) -> None:
    rbd("image-meta", "set", "{}/data", "owner", "shop")
    id = json.loads(rbd("info", "{}/data", "--format", "json"))["id"]

    made = backend.import_volume(image, stamp())
    assert made == backend.get_volume("old-data") == backend.find_volume("old-data")
    assert (made.handle, made.size) == ("old-data", 24 * MIB)
    assert image not in listed(rbd)

    with pytest.raises(FailedPrecondition, match="csi-multi import --release"):
        backend.delete_volume(made.handle, {})
    backend.formatted(made.handle)
    assert volumes.stamp(backend, "x").driver == made.stamp.driver

    assert backend.release_volume(made.handle).endswith("/data")
    assert listed(rbd) == [image]
    assert json.loads(rbd("info", "{}/data", "--format", "json"))["id"] == id
    assert meta(rbd, image) == {"owner": "shop"}
    with pytest.raises(NotFound):
        backend.get_volume(made.handle)


def test_it_can_grow_be_cut_and_be_copied_and_the_copies_are_the_drivers(backend: RbdBackend, image: str) -> None:
    made = backend.import_volume(image, stamp())

    assert volumes.expand(backend, made, 32 * MIB) == 32 * MIB
    cut = volumes.snapshot(backend, "snapshot", made)
    copy = volumes.copy(backend, "copy", cut)
    backend.delete_volume(copy.handle, {})
    backend.delete_snapshot(cut.handle, {})

    assert backend.get_volume(made.handle).stamp == made.stamp


def test_importing_it_again_is_the_same_volume(backend: RbdBackend, image: str, rbd: Run) -> None:
    made = backend.import_volume(image, stamp())

    assert backend.import_volume(image, stamp()) == made
    assert len(listed(rbd)) == 1


@pytest.mark.parametrize("word", ["image-meta", "mv"])
def test_an_import_that_died_is_finished_by_the_next(
    backend: RbdBackend, config: Config, setting: Setting, image: str, rbd: Run, word: str
) -> None:
    dying = RbdBackend(config, setting, Mortal(word))
    with pytest.raises(Died):
        dying.import_volume(image, stamp())
    dying.close()
    assert listed(rbd) == [image]

    assert backend.import_volume(image, stamp()) == backend.get_volume("old-data")
    assert len(listed(rbd)) == 1


@pytest.mark.parametrize("word", ["mv", "remove"])
def test_a_release_that_died_leaves_an_image_that_can_be_imported_again(
    backend: RbdBackend, config: Config, setting: Setting, image: str, rbd: Run, word: str
) -> None:
    made, dying = backend.import_volume(image, stamp()), RbdBackend(config, setting, Mortal(word))
    with pytest.raises(Died):
        dying.release_volume(made.handle)
    dying.close()

    assert backend.import_volume(image, stamp()) == made
    backend.release_volume(made.handle)
    assert (listed(rbd), meta(rbd, image)) == ([image], {})


def test_a_volume_of_the_drivers_own_is_neither_imported_nor_released(backend: RbdBackend, rbd: Run) -> None:
    made = volumes.create(backend, "pvc-1")
    (name,) = listed(rbd)

    with pytest.raises(AlreadyExists, match="name of this driver"):
        backend.import_volume(name, stamp())
    with pytest.raises(FailedPrecondition, match="not imported"):
        backend.release_volume(made.handle)
    assert backend.get_volume(made.handle) == made


def nothing(rbd: Run) -> str:
    return "nothing"


def elsewhere(rbd: Run) -> str:
    return "other/data"


def snapshot(rbd: Run) -> str:
    return "data@cut"


def child(rbd: Run) -> str:
    rbd("snap", "create", "{}/data@cut")
    rbd("clone", "{}/data@cut", "{}/child", "--rbd-default-clone-format", "2")
    return "child"


def tiny(rbd: Run) -> str:
    rbd("create", "{}/tiny", "--size", "4K")
    return "tiny"


def snapshot_of_ceph_csi(rbd: Run) -> str:
    rbd("create", f"{{}}/csi-snap-{UUID}", "--size", "24M")
    return f"csi-snap-{UUID}"


def between_a_volume_and_its_clone(rbd: Run) -> str:
    rbd("create", f"{{}}/csi-vol-{UUID}-temp", "--size", "24M")
    return f"csi-vol-{UUID}-temp"


def encrypted_by_ceph_csi(rbd: Run) -> str:
    rbd("image-meta", "set", "{}/data", "rbd.csi.ceph.com/encrypted", "encrypted")
    return "data"


@pytest.mark.parametrize(
    ("prepare", "kind", "words"),
    [
        (nothing, NotFound, "nothing"),
        (elsewhere, InvalidArgument, "is not the name of an image in"),
        (snapshot, InvalidArgument, "is not the name of an image in"),
        (child, FailedPrecondition, "rbd flatten"),
        (tiny, FailedPrecondition, "4096 bytes"),
        (snapshot_of_ceph_csi, FailedPrecondition, "restore the snapshot with ceph-csi"),
        (between_a_volume_and_its_clone, FailedPrecondition, "restore the snapshot with ceph-csi"),
        (encrypted_by_ceph_csi, FailedPrecondition, "is encrypted by ceph-csi"),
    ],
)
def test_what_cannot_become_a_volume_is_refused_and_left_alone(
    backend: RbdBackend, image: str, rbd: Run, prepare: Callable[[Run], str], kind: type[StorageError], words: str
) -> None:
    name = prepare(rbd)
    before = (listed(rbd), meta(rbd, image))

    with pytest.raises(kind, match=words):
        backend.import_volume(name, stamp())
    assert (listed(rbd), meta(rbd, image)) == before


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rbd.csi.ceph.com/encrypted", "do not remove its image-meta"),
        (".rbd.csi.ceph.com/encrypted", "do not remove its image-meta"),
    ],
)
def test_what_ceph_csi_encrypted_is_recognized(key: str, words: str) -> None:
    config = Config(monitors=("a",), fsid="3cb7b59b-9a3d-4b34-9a79-73900f2a06f6", pool="k8s", user="csi")
    client = Client(config, CommandRunner(), CircuitBreaker())

    with pytest.raises(FailedPrecondition, match=words):
        _refuse_ceph_csi(client, "data", {key: "x"})


def test_a_volume_of_ceph_csi_is_taken_over_as_it_is_and_given_back(
    cluster: Commands, backend: RbdBackend, rbd: Run, namespace: str
) -> None:
    """ceph-csi finds an image by the name in its journal, so it deletes nothing after the import."""
    name = f"csi-vol-{UUID}"
    rbd("create", f"{{}}/{name}", "--size", "24M")
    notes = {"csi.storage.k8s.io/pv/name": "pvc-1", "csi.ceph.com/cluster/name": "prod"}
    for key, text in notes.items():
        rbd("image-meta", "set", f"{{}}/{name}", key, text)
    contents.write(cluster, f"{cluster.pool}/{namespace}/{name}", 0, b"theirs")  # type: ignore[arg-type]

    made = backend.import_volume(name, stamp())
    assert name not in listed(rbd)
    assert volumes.read(cluster, backend, made, 6) == b"theirs"  # type: ignore[arg-type]
    copy = volumes.copy(backend, "copy", volumes.snapshot(backend, "snapshot", made))
    assert volumes.read(cluster, backend, copy, 6) == b"theirs"  # type: ignore[arg-type]
    assert backend.import_volume(name, stamp()) == made

    backend.release_volume(made.handle)
    assert (meta(rbd, name), name in listed(rbd)) == (notes, True)


def test_a_name_that_is_taken_is_refused(backend: RbdBackend, image: str, rbd: Run) -> None:
    volumes.create(backend, "old-data")

    with pytest.raises(AlreadyExists, match="choose another name"):
        backend.import_volume(image, stamp())
    assert image in listed(rbd)


def test_an_image_that_a_client_has_open_is_neither_imported_nor_released(
    backend: RbdBackend, config: Config, image: str, rbd: Run
) -> None:
    with opened(config, rbd_spec(config, image)), pytest.raises(InUse, match="watched by"):
        backend.import_volume(image, stamp())
    made = backend.import_volume(image, stamp())

    with opened(config, rbd_spec(config, listed(rbd)[0])), pytest.raises(InUse, match="watched by"):
        backend.release_volume(made.handle)
    assert backend.get_volume(made.handle) == made


def test_an_old_name_that_is_taken_by_now_is_told(backend: RbdBackend, image: str, rbd: Run) -> None:
    made = backend.import_volume(image, stamp())
    rbd("create", "{}/data", "--size", "1M")

    with pytest.raises(AlreadyExists, match="rename that other image first"):
        backend.release_volume(made.handle)
    assert backend.get_volume(made.handle) == made


def test_what_would_be_done_is_told_and_not_done(backend: RbdBackend, image: str, rbd: Run) -> None:
    report = DryRunReport()
    dry_run: Any = backend.dry_run(report)

    expected = dry_run.import_volume(image, stamp())
    assert (listed(rbd), meta(rbd, image)) == ([image], {})
    assert [step.words[step.words.index("--rados-osd-op-timeout") + 2] for step in report.steps if step.changes] == [
        "image-meta",
        "mv",
    ]

    assert backend.import_volume(image, stamp()) == expected
    dry_run.release_volume(expected.handle)
    assert backend.get_volume(expected.handle) == expected
