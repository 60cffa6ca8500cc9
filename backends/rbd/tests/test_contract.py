"""The kit of csi_multi on a real Ceph cluster, every command of which can die, fail or time out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.labels import Label
from csi_multi_testing import Call, Storage, setting
from csi_multi_testing.storage import CLUSTER, DRIVER

from csi_multi.contract import Backend, CommandFailed, CommandTimedOut, Host, Result, Stamp

from . import contents
from .ceph import user_caps
from .ceph_files import USER, key, keyring

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

    from .ceph import Cluster

MIB = 2**20
SIZE = 16 * MIB
BACKGROUND_SECONDS = 90.0  # seconds for the background to be done: a client that crashed is in its way for 30, twice
LOOKS = (
    "rbd info",
    "rbd image-meta list",
    "rbd status",
    "rbd ls",
    "rbd snap ls",
    "rbd du",
    "rbd trash ls",
    "ceph",
    "rbd diff",
    "rbd group ls",
    "rbd group snap ls",
    "rbd group image ls",
    "rados listomapvals",
    "rados get",
)
# A command that makes or removes something, and what else it is called with is not of interest here.
VERBS = {
    "info",
    "status",
    "ls",
    "du",
    "import",
    "clone",
    "resize",
    "flatten",
    "children",
    "df",
    "diff",
    "copy",
    "get",
    "listomapvals",
}
GROUPS = {"image-meta", "snap", "trash", "task", "group"}


@pytest.fixture
def storage(cluster: Cluster, namespace: str, config: Config) -> Iterator[Storage]:
    made: list[RbdBackend] = []

    def connect(host: Host) -> Backend:
        made.append(RbdBackend(config, setting(host)))
        return made[-1]

    def resources() -> list[str]:
        """The snapshot of a snapshot's image is cut by its first restore, and goes with the image."""
        for backend in made:
            assert backend.wait_until_idle(BACKGROUND_SECONDS)
        return [one for one in cluster.everything(namespace) if not one.endswith(f"@{labels.BASE_SNAPSHOT} (user)")]

    def spec(handle: str) -> str:
        return f"{cluster.pool}/{namespace}/{labels.name_prefix(labels.VOLUME, DRIVER, CLUSTER)}{handle}"

    @contextmanager
    def away() -> Iterator[None]:
        """The pool has another name: Ceph answers at once that there is none, with the status of a missing image."""
        elsewhere = f"{cluster.pool}-elsewhere"
        cluster.ceph("osd", "pool", "rename", cluster.pool, elsewhere)
        try:
            yield
        finally:
            cluster.ceph("osd", "pool", "rename", elsewhere, cluster.pool)

    @contextmanager
    def rotate() -> Iterator[None]:
        """Ceph has another key for the user, and so has the user's file."""
        use_key(key())
        try:
            yield
        finally:
            use_key(cluster.key)

    def use_key(used: str) -> None:
        given = cluster.keyring.with_name("used.keyring")
        given.write_text(keyring({USER: used}, {USER: user_caps(cluster.pool)}))
        cluster.ceph("auth", "import", "-i", str(given))
        cluster.keyring.write_text(f"[{USER}]\nkey = {used}\n")

    def importable(data: bytes) -> str:
        image = f"by-hand-{next(numbers)}"
        cluster.rbd("create", "--size", f"{SIZE}B", f"{cluster.pool}/{namespace}/{image}")
        contents.write(cluster, f"{cluster.pool}/{namespace}/{image}", 0, data)
        return image

    numbers = itertools.count(1)
    yield Storage(
        connect=connect,
        parameters={"objectSize": "1048576"},
        other_parameters={"objectSize": "2097152"},
        size=SIZE,
        overcommitted=True,
        resources=resources,
        foreign=lambda: strangers(cluster, namespace),
        foreign_handles=("theirs",),
        away=away,
        importable=importable,
        calls=(Call(owner=CommandRunner, name="run", describe=told, error=failed, timeout=silent),),
        read_only_calls=LOOKS,
        read=lambda handle, offset, length: contents.read(cluster, spec(handle), offset, length),
        write=lambda handle, offset, data: contents.write(cluster, spec(handle), offset, data),
        credentials=(cluster.keyring,),
        rotate=rotate,
    )
    resources()
    for backend in made:
        backend.close()


def strangers(cluster: Cluster, namespace: str) -> None:
    """Put there an image that was made by hand, another driver's, and another driver's under a name of ours."""
    stamp = Stamp(driver="other.example", cluster=CLUSTER, name="theirs", digest="")
    ours, others = (labels.name_prefix(labels.VOLUME, driver, CLUSTER) for driver in (DRIVER, stamp.driver))
    there = json.loads(cluster.rbd("ls", "--format", "json", f"{cluster.pool}/{namespace}"))
    for image in {f"{ours}theirs", f"{others}v", "by-hand"} - {*there}:
        spec = f"{cluster.pool}/{namespace}/{image}"
        cluster.rbd("create", "--size", "1M", spec)
        if image != "by-hand":
            cluster.rbd("image-meta", "set", spec, labels.KEY, labels.encode(Label(image=image, stamp=stamp)))


def told(program: str, *words: str, timeout: float, stdin: str = "", **more: Any) -> str:
    """Return a command without the options that all of them have: `rbd snap create k8s/n/csi-vol-...`."""
    at = next((at for at, word in enumerate(words) if word in VERBS | GROUPS), 0)
    kept = [word for word in words[at:] if not word.startswith("-")]
    return " ".join([program, *kept])


def failed() -> Exception:
    return CommandFailed(("rbd",), Result(75, "", "the kit made this command fail"))


def silent() -> Exception:
    return CommandTimedOut(("rbd",), 1)


def test_contract(csi_contract: Callable[[], None]) -> None:
    csi_contract()
