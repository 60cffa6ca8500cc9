"""What the transport reads is what botocore itself reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from csi_multi_ebs import transport
from csi_multi_ebs.config import Config
from csi_multi_ebs.session import Session

from .boto3_calls import attach, make
from .fake_ec2 import FakeEc2

GONE = "vol-00000000000000000"


@pytest.fixture
def session(cloud: FakeEc2) -> Iterator[Session]:
    session = Session(Config(region=cloud.region, endpoint=cloud.endpoint), "csi-multi")
    yield session
    session.close()


@pytest.fixture
def botocores(cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """One whose clients make calls as botocore does."""
    session = Session(Config(region=cloud.region, endpoint=cloud.endpoint), "csi-multi")
    with monkeypatch.context() as patch:
        patch.setattr(transport.Transport, "install", lambda *_: None)
        session.client("describe")
    yield session
    session.close()


DESCRIBES: dict[str, Callable[[Any], Any]] = {
    "volumes": lambda client: client.describe_volumes(),
    "no volumes": lambda client: client.describe_volumes(Filters=[{"Name": "tag:none", "Values": ["x"]}]),
    "instances": lambda client: client.describe_instances(),
    "snapshots": lambda client: client.describe_snapshots(OwnerIds=["self"]),
    "zones": lambda client: client.describe_availability_zones(),
    "a page": lambda client: client.describe_volumes(MaxResults=5),
}


@pytest.mark.parametrize("describe", DESCRIBES.values(), ids=DESCRIBES)
def test_an_answer_is_read_as_botocore_reads_it(
    cloud: FakeEc2, session: Session, botocores: Session, describe: Callable[[Any], Any]
) -> None:
    (node,) = cloud.instances(1)
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "a", "Value": ""}, {"Key": "b", "Value": "<&ü>"}]}]
    volumes = [make(cloud, TagSpecifications=tags) for _ in range(6)]
    attach(cloud, volumes[0], node)
    cloud.client().create_snapshot(VolumeId=volumes[1])

    ours, theirs = (describe(one.client("describe")) for one in (session, botocores))

    assert ours.pop("ResponseMetadata")["RequestId"].startswith("fake-")
    assert theirs.pop("ResponseMetadata")
    assert bool(ours.pop("NextToken", "")) == bool(theirs.pop("NextToken", ""))  # each answer has another one
    assert ours == theirs


def test_an_error_is_read_as_botocore_reads_it(cloud: FakeEc2, session: Session, botocores: Session) -> None:
    cloud.fail("DescribeVolumes", "InvalidVolume.NotFound", message="no <such> volume", times=2)
    told = []
    for one in (session, botocores):
        with pytest.raises(ClientError) as caught:
            one.client("describe").describe_volumes(VolumeIds=[GONE])
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        told.append((caught.value.operation_name, caught.value.response["Error"]))

    assert told[0] == told[1]


def test_an_answer_that_is_no_xml_is_an_error_of_the_parser() -> None:
    with pytest.raises(ResponseParserError):
        transport._root(b"<html><h1>Welcome to the hotel's network")
