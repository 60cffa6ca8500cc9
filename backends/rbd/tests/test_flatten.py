"""Flattening: no image has more ancestors than allowed, whether ceph-mgr or the driver flattens it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_rbd import flatten
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.command import BackgroundRunner
from csi_multi_rbd.config import Config

from csi_multi.contract import Busy, InUse, Result, Setting, Snapshot, Unavailable, Volume

from .ceph import Cluster
from .ceph_faults import without
from .volumes import BACKGROUND_SECONDS, copy, create, delete, everything, image, info, read, retried, snapshot, write

pytestmark = pytest.mark.ceph  # some start a cluster of their own

DEPTH, MOST = 2, 4
PAIRS = 12


@pytest.fixture
def shallow(config: Config, setting: Setting) -> Iterator[RbdBackend]:
    backend = RbdBackend(msgspec.structs.replace(config, flatten_depth=DEPTH, max_depth=MOST), setting)
    yield backend
    backend.close()


def depth(cluster: Cluster, backend: RbdBackend, one: Volume | Snapshot) -> int:
    """Count the parents above an image, by what the cluster says; those in the trash count too."""
    where, told, count = (
        ("--pool", cluster.pool, "--namespace", backend.config.namespace),
        info(cluster, backend, one),
        0,
    )
    while "parent" in told:
        count += 1
        told = json.loads(cluster.rbd("info", *where, "--format", "json", "--image-id", told["parent"]["id"]))
    return count


def flat(cluster: Cluster, backend: RbdBackend, *ones: Volume | Snapshot) -> None:
    cluster.wait(
        lambda: not any("parent" in info(cluster, backend, one) for one in ones), "flatten", BACKGROUND_SECONDS
    )


def deep(cluster: Cluster, backend: RbdBackend) -> tuple[Snapshot, Volume]:
    """Make a chain that is just deep enough: volume, snapshot, volume."""
    volume = create(backend, "v")
    write(cluster, backend, volume, b"data")
    cut = snapshot(backend, "s", volume)
    return cut, copy(backend, "r", cut)


def test_the_manager_flattens_what_has_too_many_parents(cluster: Cluster, shallow: RbdBackend) -> None:
    cut, restored = deep(cluster, shallow)
    flat(cluster, shallow, restored)

    assert depth(cluster, shallow, cut) == 1
    assert read(cluster, shallow, restored, 4) == b"data"


def test_no_answer_waits_for_the_manager(
    cluster: Cluster, shallow: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, late, run = threading.Event(), [], BackgroundRunner.run

    def waiting(self: BackgroundRunner, program: str, *words: str, timeout: float, **more: Any) -> Result:
        late.append(not answered.wait(BACKGROUND_SECONDS))
        return run(self, program, *words, timeout=timeout, **more)

    monkeypatch.setattr(BackgroundRunner, "run", waiting)
    _, restored = deep(cluster, shallow)
    answered.set()

    flat(cluster, shallow, restored)
    assert late
    assert not any(late), "an answer waited for the background"


def test_a_chain_never_gets_deeper_than_it_may(cluster: Cluster, shallow: RbdBackend) -> None:
    volume = create(shallow, "v")
    write(cluster, shallow, volume, b"data")
    deepest = 0
    for number in range(PAIRS):
        last = volume
        cut = retried(lambda: snapshot(shallow, f"s{number}", last))  # noqa: B023 - called at once
        volume = retried(lambda: copy(shallow, f"v{number}", cut))  # noqa: B023
        deepest = max(deepest, depth(cluster, shallow, volume))
        delete(shallow, last, cut)

    assert deepest <= MOST + 1
    assert read(cluster, shallow, volume, 4) == b"data"


def test_an_image_at_the_limit_is_busy_until_it_is_flat(
    cluster: Cluster, config: Config, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RbdBackend(msgspec.structs.replace(config, flatten_depth=DEPTH, max_depth=DEPTH), setting)
    with monkeypatch.context() as patched:
        patched.setattr(flatten.Flattener, "schedule", lambda *_: None)
        _, restored = deep(cluster, backend)
        with pytest.raises(Busy, match="flattened"):
            snapshot(backend, "t", restored)

    assert retried(lambda: snapshot(backend, "t", restored)).handle == "t"
    backend.close()


def test_what_an_earlier_process_left_deep_is_taken_up(
    cluster: Cluster, shallow: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(flatten.Flattener, "schedule", lambda *_: None)
        _, restored = deep(cluster, shallow)

    shallow.resume()

    flat(cluster, shallow, restored)


@pytest.mark.ceph
def test_where_no_manager_is_the_driver_flattens(tmp_path: Path, setting: Setting) -> None:
    with Cluster(tmp_path) as cluster:
        config = Config(
            monitors=cluster.monitors,
            fsid=cluster.fsid,
            pool=cluster.pool,
            user=cluster.user,
            keyring=str(cluster.keyring),
            flatten_depth=DEPTH,
            command_seconds=5,
        )
        backend = RbdBackend(config, setting)
        cut, restored = deep(cluster, backend)
        flat(cluster, backend, restored)
        with without(cluster, "mgr"):
            second = copy(backend, "second", cut)
            third = copy(backend, "third", cut)
            flat(cluster, backend, second, third)
            assert read(cluster, backend, third, 4) == b"data"
            assert backend.get_volume("second") == second
            delete(backend, third)
        backend.close()


def test_what_is_being_flattened_may_be_deleted_in_the_end(cluster: Cluster, shallow: RbdBackend) -> None:
    cut, restored = deep(cluster, shallow)

    patient_delete(shallow, restored)
    delete(shallow, cut)

    delete(shallow, shallow.get_volume("v"))
    assert [one for one in everything(cluster, shallow) if image(shallow, restored) in one] == []


def patient_delete(backend: RbdBackend, volume: Volume) -> None:
    def act() -> None:
        try:
            delete(backend, volume)
        except InUse as error:
            raise Unavailable(str(error)) from None

    retried(act)
