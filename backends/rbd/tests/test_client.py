"""The commands of rbd on a real cluster: what they return and raise, and that they never show a key."""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from csi_multi_rbd.client import Client
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import Config
from csi_multi_rbd.errors import (
    CephCommandFailed,
    ClusterUnreachable,
    HasDependents,
    ImageNotFound,
    NameTaken,
    ObjectNotFound,
    PoolFull,
)
from csi_multi_rbd.resources import ImageLayout, ListedImage

from csi_multi.contract import InUse, InvalidArgument, Result, Unauthenticated

from .ceph_faults import over_quota
from .other_client import opened

if TYPE_CHECKING:
    from .ceph_commands import Commands


import json
from typing import TYPE_CHECKING

from csi_multi_rbd.client import ClusterClient

from .ceph_faults import frozen

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

    from .ceph_commands import Commands

MIB = 2**20
PLAIN = ImageLayout()
KEY = "AQBB7B1pAAAAABAAu2vJd5qS5oZ7mVYxkZ0c8A=="  # nobody's
OFFLINE = Config(
    monitors=("192.0.2.1", "192.0.2.2"),
    fsid="6c722458-79d6-43f5-8c41-55d43ac4b8a6",
    pool="k8s",
    user="csi",
    keyring="/etc/ceph/csi.keyring",
)


class Recorder(CommandRunner):
    """Answers everything alike, and remembers what was asked."""

    def __init__(self, stdout: str = "", *, status: int = 0, stderr: str = "") -> None:
        self.answer = Result(status, stdout, stderr)
        self.asked: list[tuple[str, ...]] = []

    def execute(self, program: str, *words: str, timeout: float, **more: Any) -> Result:
        self.asked.append((program, *words))
        return self.answer


def changed(config: Config, **values: object) -> Config:
    return msgspec.structs.replace(config, **values)


@pytest.fixture
def rbd(config: Config) -> Client:
    return Client(config)


# What is asked.


def test_every_command_names_cluster_user_and_time_limits() -> None:
    runner = Recorder("[]")

    Client(changed(OFFLINE, namespace="ns", connect_seconds=7, command_seconds=33), runner).image_names()

    assert " ".join(runner.asked[0]) == (
        "rbd --conf /dev/null -m 192.0.2.1,192.0.2.2 --id csi --keyring /etc/ceph/csi.keyring --client-mount-timeout 7 "
        "--rados-mon-op-timeout 33 --rados-osd-op-timeout 33 ls k8s/ns --format json"
    )


@pytest.mark.parametrize("kind", ["krbd", "nbd"])
def test_what_serves_a_device_for_long_has_no_time_limit_on_its_reads_and_writes(kind: str) -> None:
    runner = Recorder("/dev/x0\n")

    device = Client(OFFLINE, runner).map(
        "a", kind="krbd" if kind == "krbd" else "nbd", read_only=True, exclusive=True, options=("x", "y=1"), cookie="c"
    )

    words = " ".join(runner.asked[0])
    assert device == "/dev/x0"
    assert "op-timeout" not in words
    assert ("--log-file=/dev/null --admin-socket=" in words) == (kind == "nbd")
    assert words.endswith(f"device map k8s/a --read-only --exclusive --cookie c --options x,y=1 --device-type {kind}")


def test_a_device_is_attached_again_under_its_name() -> None:
    runner = Recorder()

    Client(OFFLINE, runner).attach("a", device="/dev/nbd3", exclusive=True, options=("try-netlink",), cookie="c")

    assert " ".join(runner.asked[0]).endswith(
        "device attach k8s/a --device /dev/nbd3 --exclusive --cookie c --options try-netlink --device-type nbd"
    )


def test_unmapping_asks_no_cluster_and_needs_no_key() -> None:
    runner = Recorder()

    Client(changed(OFFLINE, keyring=""), runner).unmap("/dev/rbd0", kind="krbd", options=("force",))

    assert runner.asked == [
        ("rbd", "--conf", "/dev/null", "device", "unmap", "/dev/rbd0", "--device-type", "krbd", "--options", "force")
    ]


def test_a_device_in_use_is_not_unmapped() -> None:
    busy = Recorder(status=16, stderr="rbd: sysfs write failed\nrbd: unmap failed: (16) Device or resource busy\n")

    with pytest.raises(InUse, match="/dev/rbd0 is in use"):
        Client(OFFLINE, busy).unmap("/dev/rbd0", kind="krbd")


@pytest.mark.parametrize("output", ["", "no JSON", "{}", "[1]", '{"name": "a"}'])
def test_an_answer_that_is_not_understood_is_a_refusal_and_no_bug(output: str) -> None:
    with pytest.raises(CephCommandFailed, match="does not understand"):
        Client(OFFLINE, Recorder(output)).info("a")


def test_without_a_keyring_and_without_secrets_nothing_is_run() -> None:
    runner = Recorder()

    with pytest.raises(Unauthenticated, match=r"no 'keyring', and the request no secrets userID and userKey"):
        Client(changed(OFFLINE, keyring=""), runner).image_names()

    assert runner.asked == []


@pytest.mark.parametrize(
    "secrets",
    [
        {"userID": "csi"},
        {"userKey": KEY},
        {"userID": "client.csi", "userKey": KEY},
        {"userID": "--keyring", "userKey": KEY},
        {"userID": "csi\n", "userKey": KEY},
        {"userID": "csi", "userKey": "no key"},
        {"userID": "csi", "userKey": "QQ=="},
    ],
)
def test_secrets_that_name_no_user_are_refused_without_being_shown(secrets: dict[str, str]) -> None:
    with (
        pytest.raises(InvalidArgument, match="userID has to be a Ceph user") as caught,
        Client(OFFLINE).as_user(secrets),
    ):
        pass

    assert KEY not in str(caught.value)


def test_secrets_of_others_change_nothing() -> None:
    rbd = Client(OFFLINE)

    with rbd.as_user({"passphrase": "x"}) as same:
        assert same is rbd


def test_the_key_of_a_request_is_in_memory_for_as_long_as_the_request(tmp_path: Path) -> None:
    runner = Recorder("[]")

    with Client(OFFLINE, runner).as_user({"userID": "tenant", "userKey": f"{KEY}\n"}) as rbd:
        rbd.image_names()
        words = runner.asked[0]
        file = Path(words[words.index("--keyfile") + 1])
        assert file.read_text() == KEY
        assert file.stat().st_mode & 0o777 == 0o600

    assert words[words.index("--id") + 1] == "tenant"
    assert "--keyring" not in words
    assert not os.path.exists(file)  # noqa: PTH110 - the link itself


# What is answered.


def test_an_image_is_made_as_it_is_asked_for(rbd: Client, config: Config) -> None:
    layout = ImageLayout(
        features=("layering", "exclusive-lock", "object-map"), object_size=MIB, stripe_unit=64 * 1024, stripe_count=4
    )

    rbd.create("a", 100 * MIB, layout, {})
    image = rbd.info("a")

    assert (image.name, image.size, image.object_size) == ("a", 100 * MIB, MIB)
    assert (image.stripe_unit, image.stripe_count, image.data_pool) == (64 * 1024, 4, "")
    assert image.features >= {"layering", "exclusive-lock", "object-map", "striping"}
    assert "deep-flatten" not in image.features
    assert abs(datetime.now(UTC) - image.created) < timedelta(seconds=30)
    assert rbd.image_names() == ["a"]
    assert rbd.images() == [ListedImage(name="a", id=image.id, size=100 * MIB)]
    assert (rbd.metadata("a"), rbd.watchers("a"), rbd.snapshots("a"), rbd.used_bytes("a")) == ({}, (), [], 0)


def test_a_name_is_taken_once(rbd: Client) -> None:
    rbd.create("a", MIB, PLAIN, {})

    with pytest.raises(NameTaken, match=r"rbd import .* k8s/.*/a: .*already exists"):
        rbd.create("a", MIB, PLAIN, {})


def test_text_on_an_image_comes_back_as_it_was(rbd: Client) -> None:
    rbd.create("a", MIB, PLAIN, {})
    text = '{"a": "é\\n\\"x\' --id $HOME\U0001f600"}'

    rbd.set_metadata("a", "csi-multi", text)
    rbd.set_metadata("a", "other", "1")

    assert rbd.metadata("a") == {"csi-multi": text, "other": "1"}


def test_growing_again_to_the_same_size_is_done_and_shrinking_refused(rbd: Client) -> None:
    rbd.create("a", MIB, PLAIN, {})

    rbd.resize("a", 8 * MIB)
    rbd.resize("a", 8 * MIB)

    with pytest.raises(CephCommandFailed, match="shrinking"):
        rbd.resize("a", MIB)
    assert rbd.info("a").size == 8 * MIB


def test_a_copy_outlives_its_snapshot_and_its_source(rbd: Client) -> None:
    rbd.create("a", MIB, PLAIN, {})
    rbd.create_snapshot("a", "s")
    with pytest.raises(NameTaken):
        rbd.create_snapshot("a", "s")
    rbd.clone("a", "s", "b", PLAIN)
    with pytest.raises(NameTaken):
        rbd.clone("a", "s", "b", PLAIN)
    source = rbd.info("a")

    rbd.remove_snapshot("a", "s")
    rbd.remove_snapshot("a", "s")
    assert [cut.namespace for cut in rbd.snapshots("a")] == ["trash"]
    assert rbd.children("a") == ["b"]
    with pytest.raises(HasDependents):
        rbd.remove("a")
    rbd.move_to_trash("a")
    assert [(one.id, one.name) for one in rbd.list_trash()] == [(source.id, "a")]
    with pytest.raises(HasDependents):
        rbd.delete_from_trash(source.id)
    parent = rbd.info("b").parent
    assert parent
    assert (parent.image, parent.id, parent.in_trash) == ("a", source.id, True)

    rbd.flatten("b")
    rbd.flatten("b")
    assert rbd.info("b").parent is None
    rbd.delete_from_trash(source.id)
    assert rbd.list_trash() == []
    with pytest.raises(ImageNotFound):
        rbd.delete_from_trash(source.id)
    rbd.remove("b")
    assert rbd.image_names() == []


def test_clones_elsewhere_are_not_named_as_ours(rbd: Client, cluster: Commands) -> None:
    rbd.create("a", MIB, PLAIN, {})
    rbd.create_snapshot("a", "s")
    elsewhere = f"{cluster.pool}/elsewhere"
    cluster.rbd("clone", "--rbd-default-clone-format", "2", rbd.spec("a", "s"), elsewhere)

    assert rbd.children("a") == []

    cluster.rbd("rm", "--no-progress", elsewhere)


@pytest.mark.parametrize(
    "verb",
    ["info", "metadata", "watchers", "snapshots", "children", "used_bytes", "move_to_trash", "remove", "flatten"],
)
def test_an_image_that_is_not_there_is_missing(rbd: Client, verb: str) -> None:
    with pytest.raises(ImageNotFound, match=r"image k8s/.*/gone does not exist"):
        getattr(rbd, verb)("gone")


def test_an_image_or_snapshot_that_is_not_there_is_missing_whatever_is_done_to_it(rbd: Client) -> None:
    rbd.create("a", MIB, PLAIN, {})
    for act in (
        lambda: rbd.set_metadata("gone", "k", "v"),
        lambda: rbd.resize("gone", MIB),
        lambda: rbd.create_snapshot("gone", "s"),
        lambda: rbd.clone("gone", "s", "b", PLAIN),
        lambda: rbd.clone("a", "gone", "b", PLAIN),
        lambda: rbd.delete_from_trash("123456"),
    ):
        with pytest.raises(ImageNotFound):
            act()
    rbd.remove_snapshot("gone", "s")
    rbd.remove_snapshot("a", "gone")


@pytest.mark.parametrize("wrong", [{"pool": "gone"}, {"namespace": "gone"}])
def test_a_pool_or_namespace_that_is_not_there_is_never_a_missing_image(config: Config, wrong: dict[str, str]) -> None:
    rbd = Client(changed(config, **wrong))
    for act in (
        lambda: rbd.info("a"),
        lambda: rbd.move_to_trash("a"),
        lambda: rbd.remove_snapshot("a", "s"),
        lambda: rbd.delete_from_trash("123456"),
        lambda: rbd.create("a", MIB, PLAIN, {}),
        rbd.image_names,
        rbd.list_trash,
    ):
        with pytest.raises(ObjectNotFound) as caught:
            act()
        assert type(caught.value) is ObjectNotFound
    with pytest.raises(ObjectNotFound, match="'rbd namespace create'"):
        rbd.info("a")


def test_a_data_pool_that_is_not_there_is_named(rbd: Client) -> None:
    with pytest.raises(ObjectNotFound, match="data pool gone does not exist"):
        rbd.create("a", MIB, ImageLayout(data_pool="gone"), {})

    assert rbd.image_names() == []


def test_who_has_an_image_open_is_seen(rbd: Client, config: Config) -> None:
    rbd.create("a", MIB, PLAIN, {})

    with opened(config, rbd.spec("a")):
        watchers = rbd.watchers("a")

    assert [address.count("/") for address in watchers] == [1]
    assert rbd.watchers("a") == ()


def test_a_full_pool_is_said_to_be_full_and_works_again_when_there_is_room(cluster: Commands, config: Config) -> None:
    rbd = Client(changed(config, command_seconds=5))
    rbd.create("a", MIB, PLAIN, {})
    rbd.set_metadata("a", "k", "v" * 1000)
    with over_quota(cluster):
        with pytest.raises(PoolFull, match=r"pool 'k8s' has reached its quota; .* raise its quota"):
            rbd.create("b", MIB, PLAIN, {})
        started = time.monotonic()
        with pytest.raises(PoolFull):
            rbd.info("a")
        assert time.monotonic() - started < 4, "in a namespace nothing is answered, so that nobody need wait"

    time.sleep(6)  # RETRY
    assert rbd.info("a").size == MIB


def test_a_cluster_that_is_not_there_is_asked_once_and_the_rest_hear_of_it_at_once(config: Config) -> None:
    rbd = Client(changed(config, monitors=("127.0.0.1:1",), connect_seconds=4))

    with pytest.raises(ClusterUnreachable, match=rf"cluster {config.fsid} at 127.0.0.1:1: .*timed out"):
        rbd.image_names()
    started = time.monotonic()
    with pytest.raises(ClusterUnreachable, match="the cluster is tried again every 5 s"):
        rbd.image_names()

    assert time.monotonic() - started < 3.5  # a try takes 4


def test_a_wrong_key_in_a_request_is_said_to_be_wrong_and_disturbs_nobody_else(rbd: Client) -> None:
    wrong = {"userID": "csi", "userKey": KEY}

    with (
        rbd.as_user(wrong) as tenant,
        pytest.raises(ClusterUnreachable, match=r"do not accept user client\.csi with this key"),
    ):
        tenant.image_names()

    assert rbd.image_names() == []


def test_no_key_is_ever_a_word_of_a_command_or_in_a_log_or_an_error(
    rbd: Client, cluster: Commands, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:
                    continue

    watcher = threading.Thread(target=look)
    watcher.start()
    errors = []
    try:
        with caplog.at_level(logging.DEBUG):
            for key in (cluster.key, KEY):
                with rbd.as_user({"userID": config.user, "userKey": key}) as tenant:
                    for act in (tenant.image_names, lambda tenant=tenant: tenant.info("gone")):
                        try:
                            act()
                        except (ImageNotFound, ClusterUnreachable) as error:
                            errors.append(str(error))
    finally:
        done.set()
        watcher.join()

    told = [*seen, *errors, caplog.text]
    assert any("--keyfile /proc/" in line for line in seen), "nothing was seen"
    assert len(errors) == 3
    assert not [line for line in told if cluster.key in line or KEY in line]


MIB = 2**20
QUOTA = 123 * MIB


def test_a_pool_tells_its_room_and_quota(cluster: Commands, config: Config) -> None:
    ceph = ClusterClient(config)

    before = ceph.pool_usages()[config.pool]
    cluster.ceph("osd", "pool", "set-quota", config.pool, "max_bytes", str(QUOTA))
    limited = ceph.pool_usages()[config.pool]
    cluster.ceph("osd", "pool", "set-quota", config.pool, "max_bytes", "0")

    assert before.max_avail > 100 * MIB
    assert before.stored >= 0
    assert (before.quota_bytes, limited.quota_bytes) == (0, QUOTA)


def test_one_command_tells_the_state_of_the_cluster_and_the_room_of_its_pools(config: Config) -> None:
    ceph = ClusterClient(config)

    status, usages = ceph.report()

    assert status.fsid == config.fsid
    assert usages[config.pool].max_avail > 0


def test_of_two_questions_the_one_that_fails_says_why(config: Config) -> None:
    with pytest.raises(CephCommandFailed, match="no-such-thing"):
        ClusterClient(config)._connection.ceph_each("status", "osd no-such-thing")


def test_the_cluster_tells_who_it_is_and_how_it_is(cluster: Commands, config: Config) -> None:
    ceph = ClusterClient(config)

    assert ceph.status().fsid == config.fsid
    with over_quota(cluster):
        assert ceph.status().health == "HEALTH_WARN"
        assert "POOL_FULL" in ceph.status().checks


def test_the_manager_flattens_an_image(cluster: Commands, config: Config) -> None:
    rbd, ceph = Client(config), ClusterClient(config)
    rbd.create("a", MIB, ImageLayout(), {})
    rbd.create_snapshot("a", "s")
    rbd.clone("a", "s", "b", ImageLayout())

    assert ceph.queue_flatten(rbd.spec("b"))
    until = time.monotonic() + 30
    while rbd.info("b").parent and time.monotonic() < until:
        time.sleep(0.2)

    assert rbd.info("b").parent is None
    while json.loads(cluster.ceph("rbd", "task", "list", "--format", "json")):
        time.sleep(0.2)


def test_a_manager_that_cannot_is_no_error(cluster: Commands, config: Config) -> None:
    ceph = ClusterClient(config)
    ceph.status()

    assert not ceph.queue_flatten(f"{config.pool}/{config.namespace}/gone")
    with frozen(cluster, "mgr"):
        started = time.monotonic()
        assert not ceph.queue_flatten(f"{config.pool}/{config.namespace}/gone")
        assert time.monotonic() - started < 20
        assert ceph.status().fsid == config.fsid, "the circuit stays closed: only the manager is silent"


def test_monitors_that_are_silent_are_not_waited_for_again_at_once(cluster: Commands, config: Config) -> None:
    ceph = ClusterClient(changed(config, connect_seconds=4))
    with frozen(cluster, "mon"):
        with pytest.raises(ClusterUnreachable, match="timed out"):
            ceph.status()
        started = time.monotonic()
        with pytest.raises(ClusterUnreachable, match="the cluster is tried again every 5 s"):
            ceph.pool_usages()
        assert time.monotonic() - started < 3.5  # a try takes 4
