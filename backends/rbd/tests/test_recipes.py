"""The recipes of docs/rbd.md work on a real cluster as they are written."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config, Parameters, SnapshotParameters

from csi_multi.contract import (
    NotFound,
    PageRequest,
    PermissionDenied,
    Setting,
    SizeRange,
    SnapshotRequest,
    Stamp,
    Unavailable,
    VolumeRequest,
)
from csi_multi.host.command import LocalHost

from .ceph import Cluster

TEXT = (Path(__file__).parents[3] / "docs/rbd.md").read_text()
DRIVER, KUBERNETES = "multi.csi.example.com", "prod"  # those of the page
OWN = labels.name_prefix(labels.VOLUME, DRIVER, KUBERNETES)
Paste = Callable[[str], str]
User = Callable[[str], RbdBackend]


@pytest.fixture
def backend(config: Config) -> Iterator[RbdBackend]:
    setting = Setting(instance="ceph-a", driver=DRIVER, cluster=KUBERNETES, node="node-1", host=LocalHost())
    backend = RbdBackend(config, setting)
    yield backend
    backend.close()


@pytest.fixture
def user(config: Config, backend: RbdBackend, paste: Paste, tmp_path: Path) -> Iterator[User]:
    """Make an instance for a user with these caps."""
    made: list[RbdBackend] = []
    keyring = tmp_path / "keyring"

    def instance(caps: str) -> RbdBackend:
        paste(f"ceph auth get-or-create client.page {caps} -o {keyring}")
        made.append(RbdBackend(msgspec.structs.replace(config, user="page", keyring=str(keyring)), backend.setting))
        return made[-1]

    yield instance
    for one in made:
        one.close()
    paste("ceph auth rm client.page")


@pytest.fixture
def paste(cluster: Cluster, namespace: str, tmp_path: Path) -> Paste:
    """Run lines of the page as the admin, with the namespace of the test in place of the page's."""

    def run(script: str) -> str:
        script = script.replace("k8s/prod", f"{cluster.pool}/{namespace}")
        environment = {"PATH": os.environ["PATH"], "CEPH_CONF": str(cluster.directory / "ceph.conf")}
        words = ("bash", "-euo", "pipefail", "-c", script)
        done = subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def script(heading: str) -> str:
    """Return the first block of commands below a heading or a recipe's first words."""
    return TEXT.partition(heading)[2].partition("```sh\n")[2].partition("```")[0]


def recipe(words: str, command: str) -> str:
    """Return the command of a recipe that begins with these words."""
    paragraph = TEXT.partition(f"**{words}**")[2].partition("\n\n")[0]
    return next(text for text in re.findall(r"`([^`]+)`", paragraph) if text.startswith(command))


def stamp(name: str) -> Stamp:
    return Stamp(driver=DRIVER, cluster=KUBERNETES, name=name, digest="d")


def request(name: str, data_pool: str = "") -> VolumeRequest:
    parameters = Parameters(data_pool=data_pool)
    return VolumeRequest(stamp=stamp(name), size=SizeRange(required=2**24), parameters=parameters)


def snapshot(volume: str) -> SnapshotRequest:
    return SnapshotRequest(stamp=stamp("cut"), source=volume, parameters=SnapshotParameters())


def test_an_existing_image_becomes_a_volume(backend: RbdBackend, paste: Paste) -> None:
    paste("rbd create --size 16M k8s/prod/old")
    paste(script("## Existing images"))
    volume = backend.get_volume("data-db-0")

    assert (volume.size, volume.stamp.context) == (2**24, {"fsType": "ext4"})
    assert backend.find_volume("data-db-0") == volume
    assert backend.list_volumes(PageRequest()).items == (volume,)
    backend.delete_volume("data-db-0", {})
    with pytest.raises(NotFound):
        backend.get_volume("data-db-0")


def test_the_owner_in_the_names_is_what_the_page_computes(paste: Paste) -> None:
    assert f"csi-vol-{paste(script('## Existing images').splitlines()[0]).strip()}-" == OWN


def test_an_image_that_is_got_back_from_the_trash_is_the_volume_it_was(backend: RbdBackend, paste: Paste) -> None:
    volume = backend.create_volume(request("precious"))
    paste(f"rbd trash mv k8s/prod/{OWN}precious")
    id_ = paste("rbd trash ls k8s/prod").split()[0]
    paste(recipe("An image is in the trash that should not be.", "rbd trash restore").replace("ID", id_))

    assert backend.get_volume("precious") == volume


def test_what_keeps_an_image_in_the_trash_is_found_and_flattened(
    cluster: Cluster, backend: RbdBackend, paste: Paste
) -> None:
    volume = backend.create_volume(request("origin"))
    cut = backend.create_snapshot(snapshot(volume.handle))
    backend.delete_volume(volume.handle, {})
    shown = paste(recipe("An image stays in the trash.", "rbd ls --long"))
    clones = [line.split()[0] for line in shown.splitlines() if f"{OWN}origin@" in line]
    flatten = recipe("An image stays in the trash.", "ceph rbd task add flatten")

    assert len(clones) == 1
    assert clones[0].endswith(cut.handle)
    paste(flatten.replace("csi-vol-…", clones[0]))
    cluster.wait(lambda: "parent:" not in paste(f"rbd info k8s/prod/{clones[0]}"), "flatten")
    backend.resume()  # as a start does; a process that runs on does it within an hour
    cluster.wait(lambda: not paste("rbd trash ls k8s/prod"), "empty the trash")


def test_volumes_that_kubernetes_does_not_know_are_found(backend: RbdBackend, paste: Paste) -> None:
    for name in ("known", "leaked"):
        backend.create_volume(request(name))
    fake = "kubectl() { echo ceph-a/known; echo ebs/vol-1; }\n"

    assert paste(fake + script("**A volume leaked.**")).split() == ["leaked"]


def test_the_command_that_makes_a_user_makes_one_that_is_enough(config: Config, user: User) -> None:
    made = re.search(r"get-or-create client\.csi (.*?) \\\n", script("**The cluster**"))
    assert made
    backend = user(made[1].replace("pool=k8s", f"pool=k8s namespace={config.namespace}"))
    volume = backend.create_volume(request("narrow"))
    cut = backend.create_snapshot(snapshot(volume.handle))

    backend.check()
    backend.delete_snapshot(cut.handle, {})
    backend.delete_volume(volume.handle, {})


def test_without_caps_on_osds_nothing_works(user: User) -> None:
    with pytest.raises(PermissionDenied):
        user("mon 'profile rbd'").create_volume(request("v"))


def test_without_caps_on_monitors_the_user_is_not_accepted(user: User) -> None:
    with pytest.raises((PermissionDenied, Unavailable)):  # the monitors word it in several ways
        user("osd 'profile rbd pool=k8s'").create_volume(request("v"))


def test_without_caps_on_a_data_pool_a_volume_is_made_that_takes_no_writes(
    cluster: Cluster, user: User, paste: Paste
) -> None:
    paste("ceph osd pool create page-data 8; rbd pool init page-data")
    backend = user("mon 'profile rbd' osd 'profile rbd pool=k8s'")
    volume = backend.create_volume(request("v", data_pool="page-data"))

    with pytest.raises(PermissionDenied):
        backend.create_snapshot(snapshot(volume.handle))
    paste(f"rbd rm --no-progress k8s/prod/{OWN}v")
    paste("ceph config set mon mon_allow_pool_delete true")
    paste("ceph osd pool rm page-data page-data --yes-i-really-really-mean-it")


@pytest.mark.parametrize(("cap", "shuts_out"), [("profile rbd", True), ("allow r", False)])
def test_the_cap_on_monitors_is_what_shuts_a_dead_client_out(
    cluster: Cluster, user: User, paste: Paste, tmp_path: Path, cap: str, shuts_out: bool
) -> None:
    user(f"mon '{cap}' osd 'profile rbd pool=k8s'")
    tried = f"ceph --id page --keyring {tmp_path}/keyring osd blocklist add 198.51.100.7:0/1 1"

    assert paste(f"{tried} >&2 && echo yes || echo no").strip() == ("yes" if shuts_out else "no")
