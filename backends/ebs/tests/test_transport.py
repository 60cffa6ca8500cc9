"""What the transport reads is what botocore itself reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from botocore import xform_name
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


DESCRIBES: dict[str, tuple[str, dict[str, Any]]] = {
    "volumes": ("DescribeVolumes", {}),
    "no volumes": ("DescribeVolumes", {"Filters": [{"Name": "tag:none", "Values": ["x", "ü &=*\n"]}]}),
    "instances": ("DescribeInstances", {}),
    "snapshots": ("DescribeSnapshots", {"OwnerIds": ["self"]}),
    "zones": ("DescribeAvailabilityZones", {}),
    "a page": ("DescribeVolumes", {"MaxResults": 5}),
}


def by_botocore(session: Session, call: str, fields: dict[str, Any]) -> Any:
    """Make a call as botocore does."""
    return getattr(session.client("ec2"), xform_name(call))(**fields)


@pytest.mark.parametrize(("call", "fields"), DESCRIBES.values(), ids=DESCRIBES)
def test_an_answer_is_read_as_botocore_reads_it(
    cloud: FakeEc2, session: Session, call: str, fields: dict[str, Any]
) -> None:
    (node,) = cloud.instances(1)
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "a", "Value": ""}, {"Key": "b", "Value": "<&ü>"}]}]
    volumes = [make(cloud, TagSpecifications=tags) for _ in range(6)]
    attach(cloud, volumes[0], node)
    cloud.client().create_snapshot(VolumeId=volumes[1])

    ours, theirs = session.send(call, fields), by_botocore(session, call, fields)

    assert ours.pop("ResponseMetadata")["RequestId"].startswith("fake-")
    assert theirs.pop("ResponseMetadata")
    assert bool(ours.pop("NextToken", "")) == bool(theirs.pop("NextToken", ""))  # each answer has another one
    assert ours == theirs


def test_an_error_is_read_as_botocore_reads_it(cloud: FakeEc2, session: Session) -> None:
    cloud.fail("DescribeVolumes", "InvalidVolume.NotFound", message="no <such> volume", times=2)
    told = []
    for send in (session.send, partial(by_botocore, session)):
        with pytest.raises(ClientError) as caught:
            send("DescribeVolumes", {"VolumeIds": [GONE]})
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        told.append((caught.value.operation_name, caught.value.response["Error"]))

    assert told[0] == told[1]


def test_an_answer_that_is_no_xml_is_an_error_of_the_parser() -> None:
    with pytest.raises(ResponseParserError):
        transport._root(b"<html><h1>Welcome to the hotel's network")
