"""A request in terms of EC2: the zones to try, encryption, Multi-Attach, and which class decides."""

from __future__ import annotations

import pytest
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import (
    AlreadyExists,
    InvalidArgument,
    ResourceExhausted,
    SizeRange,
    TopologyRequirement,
    Volume,
    VolumeRequest,
)
from csi_multi.core import idempotent

from . import fake_ec2_moto
from .backend_requests import (
    GIB,
    MANY_WRITERS,
    A,
    B,
    C,
    Connect,
    mutable,
    parameters,
    row,
    topology,
    volume,
    volume_request,
)
from .fake_ec2 import FakeEc2


@pytest.fixture
def ebs(connect: Connect) -> EbsBackend:
    return connect()


def made(ebs: EbsBackend, request: VolumeRequest) -> Volume:
    """Make a volume as the core does, which knows what to ask after AlreadyExists."""
    return idempotent.create_volume(ebs, request, "node-1")


@pytest.mark.parametrize(
    ("wanted", "zone"),
    [
        (topology(B, A, requisite=(A, B, C)), B),
        (topology(requisite=(C,)), C),
        (topology(C, requisite=(A, B, C)), C),
    ],
)
def test_the_zone_is_the_most_wanted(ebs: EbsBackend, wanted: object, zone: str) -> None:
    assert ebs.create_volume(volume_request(topology=wanted)).topology == ({"zone": zone},)


def test_without_a_wish_volumes_are_spread_over_the_zones(ebs: EbsBackend) -> None:
    zones = {ebs.create_volume(volume_request(f"pvc-{number}")).topology[0]["zone"] for number in range(12)}

    assert zones == {A, B, C}


def test_zones_of_another_region_cannot_be_served(ebs: EbsBackend, cloud: FakeEc2) -> None:
    with pytest.raises(ResourceExhausted):
        made(ebs, volume_request(topology=topology("us-east-1a")))
    assert ebs.create_volume(volume_request("pvc-2", topology=topology("us-east-1a", A))).topology == ({"zone": A},)


def test_places_without_a_zone_are_refused_with_the_key_that_zones_have(ebs: EbsBackend) -> None:
    key = "key 'multi.csi.example.com/zone'"
    elsewhere = TopologyRequirement(requisite=({"node": "on-premises"},))
    nowhere = TopologyRequirement(requisite=({},), preferred=({},))

    with pytest.raises(ResourceExhausted, match=f"has {key}, only node"):
        made(ebs, volume_request(topology=elsewhere))
    with pytest.raises(InvalidArgument, match=r"no topology has a segment; the key of a zone is 'multi\.csi"):
        made(ebs, volume_request(topology=nowhere))
    both = TopologyRequirement(requisite=(*elsewhere.requisite, {"zone": B, "node": "node-1"}))
    assert made(ebs, volume_request(topology=both)).topology == ({"zone": B},)


@pytest.mark.parametrize("kind", ["local-zone", "wavelength-zone"])
def test_volumes_come_into_local_and_wavelength_zones_only_when_they_are_named(
    connect: Connect, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    connect().check()  # now there is a region
    far = next(
        zone for store in fake_ec2_moto.stores() for zone in store.describe_availability_zones() if zone.name == C
    )
    monkeypatch.setattr(far, "zone_type", kind)
    ebs, named = connect(), connect("named", zones=(C,))

    anywhere = {ebs.create_volume(volume_request(f"pvc-{number}")).topology[0]["zone"] for number in range(12)}

    assert anywhere == {A, B}
    assert ebs.create_volume(volume_request("pvc-c", topology=topology(C))).topology == ({"zone": C},)
    assert named.create_volume(volume_request()).topology == ({"zone": C},)


def test_an_instance_keeps_to_its_zones(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(zones=(B,))

    assert ebs.create_volume(volume_request(topology=topology(A, B))).topology == ({"zone": B},)
    assert ebs.create_volume(volume_request("pvc-2")).topology == ({"zone": B},)
    with pytest.raises(ResourceExhausted):
        made(ebs, volume_request("pvc-3", topology=topology(A)))


@pytest.mark.parametrize(
    ("config", "given", "encrypted", "key"),
    [
        ({}, {}, "", ""),
        ({"encrypted": True}, {}, "true", ""),
        ({"kms_key_id": "alias/ours"}, {}, "true", "alias/ours"),
        ({"encrypted": False, "kms_key_id": "alias/ours"}, {}, "false", ""),
        ({"kms_key_id": "alias/ours"}, {"encrypted": "false"}, "false", ""),
        ({"kms_key_id": "alias/ours"}, {"encrypted": "true"}, "true", "alias/ours"),
        ({}, {"kmsKeyId": "alias/class"}, "true", "alias/class"),
        ({"kms_key_id": "alias/ours"}, {"kmsKeyId": "alias/class"}, "true", "alias/class"),
        ({"encrypted": False}, {"kmsKeyId": "alias/class"}, "true", "alias/class"),
    ],
)
def test_the_class_decides_on_encryption_before_the_instance(
    connect: Connect, cloud: FakeEc2, config: dict[str, object], given: dict[str, str], encrypted: str, key: str
) -> None:
    ebs = connect(zones=(A,), **config)
    origin = ebs.create_volume(volume_request("pvc-0"))

    ebs.create_volume(volume_request("pvc-1", parameters=parameters(**given)))
    ebs.clone_volume(volume_request("pvc-2", parameters=parameters(**given), source=volume(origin.handle)))

    sent = [call for call in cloud.seen if call.action in ("CreateVolume", "CopyVolumes")][1:]
    assert [(call.get("Encrypted"), call.get("KmsKeyId")) for call in sent] == [(encrypted, key)] * 2


def test_volumes_for_many_writers_are_made_for_several_nodes(ebs: EbsBackend, cloud: FakeEc2) -> None:
    kind = parameters(type="io2", iops="1000")
    shared = made(ebs, volume_request(size=SizeRange(required=4 * GIB), capabilities=(MANY_WRITERS,), parameters=kind))

    clone = made(
        ebs, volume_request("pvc-3", source=volume(shared.handle), capabilities=(MANY_WRITERS,), parameters=kind)
    )

    assert row(cloud, shared.handle).multi_attach_enabled
    assert row(cloud, clone.handle).multi_attach_enabled
    with pytest.raises(InvalidArgument, match="io1 or io2"):
        made(ebs, volume_request("pvc-2", capabilities=(MANY_WRITERS,)))


def test_a_volume_attributes_class_wins_over_the_storage_class(ebs: EbsBackend, cloud: FakeEc2) -> None:
    ebs.create_volume(volume_request(size=SizeRange(required=10 * GIB), mutable=mutable(iops="4000", throughput="300")))

    sent = cloud.seen[1]
    assert (sent.get("Iops"), sent.get("Throughput")) == ("4000", "300")


def test_an_empty_volume_is_filled_at_no_rate(ebs: EbsBackend, cloud: FakeEc2) -> None:
    empty = made(ebs, volume_request(parameters=parameters(volumeInitializationRate="200")))

    assert row(cloud, empty.handle).volume_initialization_rate is None


def places(*requisite: dict[str, str]) -> TopologyRequirement:
    return TopologyRequirement(requisite=requisite)


def ids_of_zones() -> dict[str, str]:
    stores = list(fake_ec2_moto.stores())
    return {zone.name: zone.zone_id for store in stores for zone in store.describe_availability_zones()}


def test_a_zone_can_be_requested_by_its_id_and_the_repeated_request_finds_the_volume(
    connect: Connect, cloud: FakeEc2
) -> None:
    connect().check()  # now there is a region
    request = volume_request(topology=places({"zone-id": ids_of_zones()[B]}))

    first = made(connect(), request)
    again = made(connect(), request)

    assert first.topology == again.topology == ({"zone": B},)
    assert first.handle == again.handle
    other = volume_request(size=SizeRange(required=2 * first.size), topology=request.topology)
    with pytest.raises(AlreadyExists, match="bytes"):
        made(connect(), other)


def test_an_existing_volume_is_found_when_its_zone_is_requested_by_id_and_refused_for_another_id(
    connect: Connect, cloud: FakeEc2
) -> None:
    ebs = connect()
    ebs.check()
    first = made(ebs, volume_request(topology=topology(B)))
    by_id = {zone: volume_request(topology=places({"zone-id": id})) for zone, id in ids_of_zones().items()}
    cloud.limits.volumes = 1  # so that EC2 does not find the volume by its token

    assert made(connect(), by_id[B]).handle == first.handle
    with pytest.raises(AlreadyExists, match="topology"):
        made(connect(), by_id[A])


def test_an_id_and_a_name_of_different_zones_name_no_zone(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect()
    ebs.check()
    id = ids_of_zones()[B]

    for one in ({"zone": A, "zone-id": id}, {"zone-id": "use1-az1"}):
        with pytest.raises(ResourceExhausted, match="no requested zone"):
            made(ebs, volume_request(topology=places(one)))
    assert made(ebs, volume_request(topology=places({"zone": B, "zone-id": id}))).topology == ({"zone": B},)
