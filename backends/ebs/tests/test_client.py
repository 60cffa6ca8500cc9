"""The client on the simulated EC2: what it sends, what it returns, and the errors for failures."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from botocore.exceptions import ParamValidationError
from csi_multi_ebs.client import Client
from csi_multi_ebs.config import Config
from csi_multi_ebs.errors import (
    DeviceNameTaken,
    IncorrectState,
    InstanceFull,
    QuotaExceeded,
    TokenMismatch,
    VolumeAttached,
    ZoneFull,
)
from csi_multi_ebs.labels import NAME, OWNER
from csi_multi_ebs.resources import Ec2Volume
from csi_multi_ebs.volume_types import NewVolume, VolumeSpec

from csi_multi.contract import (
    InvalidArgument,
    InvalidToken,
    NotFound,
    Observer,
    PermissionDenied,
    Timeout,
    Unauthenticated,
    Unavailable,
)
from csi_multi.contract.observer import EndCallback, Rpc

from .fake_ec2 import FakeEc2, looks

OURS = "multi.csi.example.com/prod/cloud"
ZONE = "eu-west-1a"
GONE = "vol-00000000000000000"
SPEC = VolumeSpec(type="gp3", size=10)
TAGS = {OWNER: OURS, NAME: "pvc-1"}


def connect(cloud: FakeEc2, **config: object) -> Client:
    return Client(Config(region=cloud.region, endpoint=cloud.endpoint, **({"max_attempts": 1} | config)))  # type: ignore[arg-type]


@pytest.fixture
def ec2(cloud: FakeEc2) -> Iterator[Client]:
    """EC2 asked once per call."""
    ec2 = connect(cloud)
    yield ec2
    ec2.close()


@pytest.fixture
def patient(cloud: FakeEc2) -> Iterator[Client]:
    """EC2 asked up to three times per call, without the pace that throttling would set."""
    ec2 = connect(cloud, max_attempts=3)
    yield ec2
    ec2.close()


def make(ec2: Client, name: str = "pvc-1", owner: str = OURS) -> Ec2Volume:
    return ec2.create_volume(NewVolume(spec=SPEC, tags={OWNER: owner, NAME: name}), ZONE, name)


# Creation.


def test_what_is_not_asked_for_is_not_sent(ec2: Client, cloud: FakeEc2) -> None:
    ec2.create_volume(NewVolume(spec=SPEC, tags=TAGS), ZONE, "t1")

    unsaid = {"Iops", "Throughput", "Encrypted", "KmsKeyId", "SnapshotId", "MultiAttachEnabled"}
    assert not unsaid & cloud.seen[0].params.keys()
    assert "VolumeInitializationRate" not in cloud.seen[0].params


def test_a_repeated_token_returns_the_same_volume(ec2: Client) -> None:
    assert make(ec2).id == make(ec2).id


def test_a_token_with_other_parameters_is_told_apart(ec2: Client) -> None:
    make(ec2)

    with pytest.raises(TokenMismatch, match="IdempotentParameterMismatch, request fake-"):
        ec2.create_volume(NewVolume(spec=VolumeSpec(type="gp3", size=11), tags=TAGS), ZONE, "pvc-1")


def test_a_volume_is_made_of_a_snapshot_and_of_a_volume(ec2: Client, cloud: FakeEc2) -> None:
    source = make(ec2)
    snapshot = ec2.create_snapshot(source.id, {NAME: "snap-1"}, "for a test")
    ec2.volumes([source.id])
    ec2.snapshots([snapshot.id])

    restored = ec2.create_volume(
        NewVolume(spec=SPEC, tags=TAGS, snapshot=snapshot.id, initialization_rate=200), ZONE, "t2"
    )
    copied = ec2.create_volume(
        NewVolume(copy_of=source.id, spec=VolumeSpec(type="gp3", size=20), tags={NAME: "copy"}), ZONE, "t3"
    )

    assert restored.snapshot == snapshot.id
    assert next(call for call in cloud.seen if call.get("SnapshotId")).get("VolumeInitializationRate") == "200"
    assert (copied.size, copied.zone, copied.tags) == (20, ZONE, {NAME: "copy"})


def test_the_quota_is_told_from_a_full_zone(ec2: Client, cloud: FakeEc2) -> None:
    cloud.limits.volumes = 0
    with pytest.raises(QuotaExceeded):
        make(ec2)

    cloud.limits.volumes = None
    cloud.limits.full_zones = {ZONE}
    with pytest.raises(ZoneFull):
        make(ec2)


def test_a_full_zone_is_not_asked_again_although_it_answers_with_a_server_error(
    patient: Client, cloud: FakeEc2
) -> None:
    cloud.limits.full_zones = {ZONE}

    with pytest.raises(ZoneFull):
        make(patient)

    assert cloud.calls["CreateVolume"] == 1


def test_a_zone_that_does_not_exist_can_not_serve(ec2: Client) -> None:
    with pytest.raises(ZoneFull):
        ec2.create_volume(NewVolume(spec=SPEC, tags=TAGS), "eu-west-1x", "t")


# Lookups.


def test_a_missing_volume_does_not_spoil_the_batch(ec2: Client, cloud: FakeEc2) -> None:
    made = [make(ec2, "a"), make(ec2, "b")]

    found = ec2.volumes([GONE, *(row.id for row in made), "vol-11111111111111111"])

    assert found.keys() == {row.id for row in made}
    assert cloud.calls["DescribeVolumes"] == 2


@pytest.mark.parametrize("id", ["", "pvc-1", "vol-", "vol-xyz", "vol-0123456789abcdef0\n", "snap-00000000"])
def test_a_malformed_id_is_never_sent(ec2: Client, cloud: FakeEc2, id: str) -> None:
    assert ec2.volumes([id]) == {}
    assert ec2.modifications([id]) == {}
    assert ec2.instances([id]) == {}
    assert not cloud.calls


def test_volumes_are_found_by_tag_and_only_the_owners(ec2: Client) -> None:
    mine = make(ec2, "pvc-1")
    make(ec2, "pvc-2")
    ec2.create_volume(NewVolume(spec=SPEC, tags={OWNER: "somebody/else/x", NAME: "pvc-1"}), ZONE, "t")

    assert [row.id for row in ec2.volumes_tagged(NAME, ["pvc-1", "pvc-9"], OURS)] == [mine.id]


def test_a_wildcard_in_a_name_means_itself(ec2: Client) -> None:
    make(ec2, "ab")

    assert ec2.volumes_tagged(NAME, ["a*", "?b"], OURS) == []


def test_many_names_are_asked_for_in_several_calls(ec2: Client, cloud: FakeEc2) -> None:
    ec2.volumes_tagged(NAME, [f"pvc-{number}" for number in range(400)], OURS)

    values = [sum(len(some) for some in call.filters().values()) for call in cloud.seen]
    assert len(values) == 3
    assert max(values) <= 200


def test_pages_show_all_of_the_owner_and_nobody_elses(ec2: Client) -> None:
    made = {make(ec2, f"pvc-{number}").id for number in range(12)}
    make(ec2, "theirs", owner="somebody/else/x")

    for limit in (0, 2, 5, 7):
        shown, token = ec2.volume_page(OURS, limit, "")
        while token:
            rows, token = ec2.volume_page(OURS, limit, token)
            shown += rows
        assert sorted(row.id for row in shown) == sorted(made)


def test_a_foreign_token_is_refused(ec2: Client) -> None:
    with pytest.raises(InvalidToken):
        ec2.volume_page(OURS, 0, "this-is-not-a-token")
    with pytest.raises(InvalidToken):
        ec2.snapshot_page(OURS, 0, "this-is-not-a-token")


def test_zones_are_sorted(ec2: Client) -> None:
    assert list(ec2.zones()) == ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
    assert {zone.kind for zone in ec2.zones().values()} == {"availability-zone"}
    assert all(zone.id.startswith("euw1-az") for zone in ec2.zones().values())


# Attachment, removal, change.


def test_a_volume_is_attached_and_detached(ec2: Client, cloud: FakeEc2) -> None:
    (node,) = cloud.instances(1, zone=ZONE)
    volume = make(ec2).id
    ec2.volumes([volume])

    begun = ec2.attach(volume, node, "/dev/xvdba")
    (there,) = ec2.volumes([volume])[volume].attachments
    ec2.detach(volume, node)

    assert (begun.instance, begun.device, begun.state) == (node, "/dev/xvdba", "attaching")
    assert (there.instance, there.device, there.state) == (node, "/dev/xvdba", "attached")
    assert there.since is not None
    assert ec2.volumes([volume])[volume].attachments == ()


def test_reasons_not_to_attach_are_told_apart(ec2: Client, cloud: FakeEc2) -> None:
    node, other = cloud.instances(2, zone=ZONE)
    one, two = make(ec2, "a").id, make(ec2, "b").id
    ec2.volumes([one, two])
    ec2.attach(one, node, "/dev/xvdba")

    with pytest.raises(VolumeAttached):
        ec2.attach(one, other, "/dev/xvdba")
    with pytest.raises(DeviceNameTaken):
        ec2.attach(two, node, "/dev/xvdba")
    with pytest.raises(NotFound):
        ec2.attach(GONE, node, "/dev/xvdbb")
    with pytest.raises(NotFound):
        ec2.attach(two, "i-00000000000000000", "/dev/xvdbb")
    cloud.limits.attachments = 1
    with pytest.raises(InstanceFull):
        ec2.attach(two, node, "/dev/xvdbb")


def test_what_is_not_attached_can_not_be_detached(ec2: Client, cloud: FakeEc2) -> None:
    (node,) = cloud.instances(1, zone=ZONE)
    volume = make(ec2).id
    ec2.volumes([volume])

    with pytest.raises(IncorrectState):
        ec2.detach(volume, node)


def test_a_volume_goes_unless_it_is_attached(ec2: Client, cloud: FakeEc2) -> None:
    (node,) = cloud.instances(1, zone=ZONE)
    volume = make(ec2).id
    ec2.volumes([volume])
    ec2.attach(volume, node, "/dev/xvdba")
    with pytest.raises(VolumeAttached):
        ec2.delete_volume(volume)

    ec2.detach(volume, node)
    ec2.volumes([volume])
    ec2.delete_volume(volume)

    assert cloud.everything() == ()
    with pytest.raises(NotFound):
        ec2.delete_volume(volume)


def test_a_change_says_only_what_changes(ec2: Client, cloud: FakeEc2) -> None:
    volume = make(ec2).id
    ec2.volumes([volume])

    begun = ec2.modify(volume, VolumeSpec(type="gp3", size=20))

    assert (begun.volume, begun.size, begun.type) == (volume, 20, "gp3")
    assert not {"Iops", "Throughput"} & cloud.seen[-1].params.keys()


def test_tags_are_set_and_removed(ec2: Client) -> None:
    volume = make(ec2).id

    ec2.tag([volume], {"team": "blue", "x": ""})
    ec2.untag([volume], [NAME, "never-there"])

    assert ec2.volumes([volume])[volume].tags == {OWNER: OURS, "team": "blue", "x": ""}


# Snapshots.


def test_fast_restores_are_asked_for(ec2: Client, cloud: FakeEc2) -> None:
    volume = make(ec2).id
    ec2.volumes([volume])
    snapshot = ec2.create_snapshot(volume, TAGS, "").id

    ec2.enable_fast_restore([snapshot], ["eu-west-1a", "eu-west-1b"])

    assert cloud.fast_restores == {snapshot: {"eu-west-1a", "eu-west-1b"}}


def test_a_snapshot_is_not_cut_twice_when_its_answer_is_lost(patient: Client, cloud: FakeEc2) -> None:
    volume = make(patient).id
    patient.volumes([volume])
    cloud.drop("CreateSnapshot", after_effect=True)

    with pytest.raises(Unavailable):
        patient.create_snapshot(volume, TAGS, "")

    assert cloud.calls["CreateSnapshot"] == 1


def test_a_snapshot_that_ec2_throttled_was_not_cut_and_is_tried_again(patient: Client, cloud: FakeEc2) -> None:
    volume = make(patient).id
    cloud.fail("CreateSnapshot", "RequestLimitExceeded")

    made = patient.create_snapshot(volume, TAGS, "")

    assert cloud.everything() == tuple(sorted([volume, made.id]))


# Trouble.


def test_a_throttled_call_is_repeated(patient: Client, cloud: FakeEc2) -> None:
    cloud.fail("CreateVolume", "RequestLimitExceeded", times=2)

    assert make(patient).id
    assert cloud.calls["CreateVolume"] == 3


def test_a_creation_whose_answer_is_lost_is_repeated_and_made_once(patient: Client, cloud: FakeEc2) -> None:
    cloud.drop("CreateVolume", after_effect=True)

    made = make(patient)

    assert cloud.everything() == (made.id,)


def test_throttling_without_end_is_unavailable(patient: Client, cloud: FakeEc2) -> None:
    cloud.fail("CreateVolume", "RequestLimitExceeded", times=9)

    with pytest.raises(Unavailable, match="RequestLimitExceeded"):
        make(patient)

    assert cloud.calls["CreateVolume"] == 3


def test_a_missing_right_and_bad_credentials_are_told_apart(ec2: Client, cloud: FakeEc2) -> None:
    cloud.fail("CreateVolume", "UnauthorizedOperation", message="You are not authorized to perform this operation.")
    with pytest.raises(PermissionDenied, match="ec2:CreateVolume"):
        make(ec2)
    cloud.fail("CreateVolume", "AuthFailure")
    with pytest.raises(Unauthenticated):
        make(ec2)


def test_without_credentials_it_says_so(cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    ec2 = connect(cloud)

    with pytest.raises(Unauthenticated, match="NoCredentialsError"):
        make(ec2)
    ec2.close()


def test_an_answer_that_takes_too_long_is_a_timeout(cloud: FakeEc2) -> None:
    ec2 = connect(cloud, read_seconds=0.2)
    cloud.slow("CreateVolume", 5)

    with pytest.raises(Timeout, match="CreateVolume"):
        make(ec2)
    ec2.close()


def test_a_server_error_is_unavailable(ec2: Client, cloud: FakeEc2) -> None:
    cloud.fail("DescribeVolumes", "InternalError")

    with pytest.raises(Unavailable, match="InternalError"):
        ec2.volumes([GONE])


def test_a_closed_door_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    ec2 = Client(Config(region="eu-west-1", endpoint=f"http://127.0.0.1:{port}", max_attempts=1))

    with pytest.raises(Unavailable, match="DescribeAvailabilityZones"):
        ec2.zones()
    ec2.close()


def test_an_answer_that_is_not_ec2s_is_unavailable() -> None:
    page = b"<html><h1>Welcome to the hotel's network"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))

        thread = threading.Thread(target=serve)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        ec2 = Client(Config(region="eu-west-1", endpoint=endpoint, max_attempts=1))
        with pytest.raises(Unavailable):
            ec2.zones()
        thread.join()
        ec2.close()


def test_a_word_that_ec2_does_not_know_is_a_bug_and_shows(ec2: Client) -> None:
    with pytest.raises(ParamValidationError):
        ec2.tag([GONE], {"key": 7})  # type: ignore[dict-item]


def test_what_ec2_hides_is_hidden_here(ec2: Client, cloud: FakeEc2) -> None:
    cloud.takes.appearing = looks(1)
    made = make(ec2)

    assert ec2.volumes([made.id]) == {}
    assert ec2.volumes([made.id]).keys() == {made.id}


def test_a_request_that_ec2_finds_wrong_is_an_invalid_argument(ec2: Client, cloud: FakeEc2) -> None:
    with pytest.raises(InvalidArgument):
        ec2.create_volume(NewVolume(spec=SPEC, tags={"aws:mine": "x"}), ZONE, "t")


class Told:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def begin_rpc(self, rpc: Rpc) -> EndCallback:
        raise AssertionError("a backend tells of no RPC")

    def begin_call(self, instance: str, program: str, operation: str) -> EndCallback:
        return lambda outcome: self.calls.append((instance, program, operation, outcome))


def test_every_call_is_told_by_its_name_with_its_outcome(cloud: FakeEc2) -> None:
    told = Told()
    config = Config(region=cloud.region, endpoint=cloud.endpoint, max_attempts=3)
    ec2 = Client(config, observe=Observer("cloud", (told,)))
    with pytest.raises(NotFound):
        ec2.delete_volume(GONE)
    ec2.volumes([GONE])
    ec2.zones()
    ec2.close()

    assert told.calls == [
        ("cloud", "ec2", "DeleteVolume", "NotFound"),
        ("cloud", "ec2", "DescribeVolumes", "NotFound"),
        ("cloud", "ec2", "DescribeAvailabilityZones", "ok"),
    ]
