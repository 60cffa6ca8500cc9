"""The trash: purged in the background, never of other owners' images, and again after a failure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from csi_multi_rbd import background, labels, trash
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.command import BackgroundRunner
from csi_multi_rbd.config import Config

from csi_multi.contract import CommandTimedOut, Result, Setting
from csi_multi.host.command import LocalHost

from .ceph import Cluster
from .volumes import BACKGROUND_SECONDS, copy, create, delete, everything, held, image, snapshot


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What failed is tried again soon."""
    monkeypatch.setattr(background.BackgroundWorker.__init__, "__kwdefaults__", {"pause": 0.5})
    return


def move_to_trash(cluster: Cluster, backend: RbdBackend, name: str) -> None:
    cluster.rbd("trash", "mv", f"{cluster.pool}/{backend.config.namespace}/{name}")


def test_only_our_own_images_are_purged(cluster: Cluster, backend: RbdBackend) -> None:
    where = f"{cluster.pool}/{backend.config.namespace}"
    strangers = [f"{labels.name_prefix(labels.VOLUME, 'other.example', 'c')}v", "csi-vol-v", "by-hand"]
    for name in (*strangers, image(backend, "v")):
        cluster.rbd("create", "--size", "1M", f"{where}/{name}")
        move_to_trash(cluster, backend, name)

    backend.main.trash.sweep(now=True)

    assert everything(cluster, backend) == sorted(f"trash {name}" for name in strangers)


def test_what_is_open_is_purged_when_it_is_closed(
    cluster: Cluster, config: Config, setting: Setting, soon: None
) -> None:
    backend = RbdBackend(config, setting)
    volume = create(backend, "v")
    with held(cluster, backend, volume):
        move_to_trash(cluster, backend, image(backend, volume))
        backend.main.trash.sweep(now=True)
        assert not backend.main.trash.wait_until_idle(2)

    assert everything(cluster, backend) == []
    backend.close()


def test_a_purge_that_is_killed_is_begun_again(
    cluster: Cluster, config: Config, setting: Setting, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, killed = BackgroundRunner.run, []

    def dying(self: BackgroundRunner, program: str, *words: str, timeout: float, **more: Any) -> Result:
        if "rm" in words and not killed:
            killed.append(words)
            raise CommandTimedOut((program,), 1)
        return run(self, program, *words, timeout=timeout, **more)

    monkeypatch.setattr(BackgroundRunner, "run", dying)
    backend = RbdBackend(config, setting)
    delete(backend, create(backend, "v"))

    assert everything(cluster, backend) == []
    assert killed
    backend.close()


def test_the_trash_is_looked_through_now_and_then(
    cluster: Cluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.check()
    volume = create(backend, "v")
    move_to_trash(cluster, backend, image(backend, volume))
    backend.check()
    assert everything(cluster, backend) == [f"trash {image(backend, volume)}"]

    monkeypatch.setattr(trash, "SWEEP_SECONDS", 0.0)
    backend.check()
    assert everything(cluster, backend) == []


def test_a_look_that_failed_is_repeated_at_the_next_check(
    cluster: Cluster, config: Config, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RbdBackend(config, setting)
    move_to_trash(cluster, backend, image(backend, create(backend, "v")))
    with monkeypatch.context() as patched:
        patched.setattr(BackgroundRunner, "run", _silent)
        with pytest.raises(Exception, match="did not finish"):
            backend.resume()
    backend.check()

    assert everything(cluster, backend) == []
    backend.close()


def _silent(self: BackgroundRunner, program: str, *words: str, timeout: float, **more: Any) -> Result:
    raise CommandTimedOut((program,), 1)


def test_a_node_leaves_the_trash_alone(cluster: Cluster, backend: RbdBackend, config: Config) -> None:
    move_to_trash(cluster, backend, image(backend, create(backend, "v")))
    node = RbdBackend(
        config,
        Setting(instance="ceph", driver="multi.csi.test", cluster="c", node="n", host=LocalHost(), controller=False),
    )
    node.resume()
    node.check()

    assert everything(cluster, node) == [f"trash {image(backend, 'v')}"]
    node.close()


@pytest.mark.parametrize("copied", ["nothing yet", "a clone"])
def test_what_another_process_deleted_beside_a_copy_is_purged_with_the_copys_snapshot(
    cluster: Cluster, backend: RbdBackend, copied: str
) -> None:
    volume = create(backend, "v")
    where = f"{cluster.pool}/{backend.config.namespace}"
    source = f"{where}/{image(backend, volume)}@{labels.temporary_snapshot(labels.VOLUME, 'copy')}"
    cluster.rbd("snap", "create", source)
    if copied == "a clone":
        cluster.rbd("clone", "--rbd-default-clone-format", "2", source, f"{where}/by-hand")
    move_to_trash(cluster, backend, image(backend, volume))  # rbd does that also beside the snapshot

    backend.main.trash.sweep(now=True)

    kept = [f"trash {image(backend, volume)}", "image by-hand"] if copied == "a clone" else []
    assert sorted(everything(cluster, backend)) == sorted(kept)
    if copied == "a clone":
        cluster.rbd("rm", f"{where}/by-hand")
        backend.main.trash.sweep(now=True, parents=())
        assert everything(cluster, backend) == []


def test_an_image_in_the_trash_keeps_the_snapshots_of_others(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    where = f"{cluster.pool}/{backend.config.namespace}"
    cluster.rbd("snap", "create", f"{where}/{image(backend, volume)}@by-hand")
    move_to_trash(cluster, backend, image(backend, volume))

    backend.main.trash.sweep(now=True)

    assert everything(cluster, backend) == [f"trash {image(backend, volume)}"]


def test_a_chain_is_purged_from_its_end(cluster: Cluster, config: Config, setting: Setting) -> None:
    backend = RbdBackend(msgspec.structs.replace(config, flatten_depth=15, max_depth=15), setting)
    volume = create(backend, "v0")
    chain = [volume]
    for number in range(1, 3):
        cut = snapshot(backend, f"s{number}", chain[-1])  # type: ignore[arg-type]
        chain += [cut, copy(backend, f"v{number}", cut)]  # type: ignore[list-item]
    delete(backend, *chain[:-1])
    assert len([one for one in everything(cluster, backend) if one.startswith("trash")]) == len(chain) - 1

    delete(backend, chain[-1])
    started = time.monotonic()

    assert everything(cluster, backend) == []
    assert time.monotonic() - started < BACKGROUND_SECONDS
    backend.close()
