"""Credentials and where they come from, and how long a client retries."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from csi_multi_ebs import botocore_model
from csi_multi_ebs.client import Client
from csi_multi_ebs.config import Config
from csi_multi_ebs.session import Session, _other_endpoint

from csi_multi.contract import PermissionDenied, Unauthenticated, Unavailable

from .fake_ec2 import FakeEc2
from .thread_helpers import run_together

GONE = "vol-00000000000000000"


def config(cloud: FakeEc2, **more: object) -> Config:
    return Config(region=cloud.region, endpoint=cloud.endpoint, max_attempts=1, **more)  # type: ignore[arg-type]


@pytest.fixture
def session(cloud: FakeEc2) -> Iterator[Session]:
    session = Session(config(cloud), "csi-multi")
    yield session
    session.close()


def test_nothing_of_boto3_is_imported_before_the_first_call() -> None:
    code = (
        "import sys; from csi_multi_ebs.config import Config; from csi_multi_ebs.client import Client; "
        "Client(Config(region='eu-west-1')); print([name for name in sys.modules if name.startswith('boto')])"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"


def test_botocore_is_told_of_all_our_calls_and_no_others(session: Session) -> None:
    told = [session.client(group).meta.service_model.operation_names for group in ("ec2", "quotas", "blocks")]

    assert sorted(name for names in told for name in names) == sorted(botocore_model.CALLS)


def test_threads_that_want_a_client_at_once_get_the_same(session: Session) -> None:
    clients = run_together(*[lambda: session.client("ec2")] * 16)

    assert len(set(map(id, clients))) == 1


def test_each_group_of_calls_has_its_own_client(session: Session) -> None:
    assert len({id(session.client(group)) for group in set(botocore_model.CALLS.values())}) == len(
        set(botocore_model.CALLS.values())
    )


def test_a_client_has_the_patience_that_was_configured(cloud: FakeEc2) -> None:
    patience = {"connect_seconds": 1.5, "read_seconds": 2.5}
    session = Session(Config(region="eu-west-1", endpoint=cloud.endpoint, max_attempts=4, **patience), "x")  # type: ignore[arg-type]

    told = session.client("ec2").meta.config

    assert (told.connect_timeout, told.read_timeout) == (1.5, 2.5)
    assert told.retries["total_max_attempts"] == 1  # retries.py repeats calls
    assert "csi-multi" in told.user_agent
    session.close()


def test_without_an_endpoint_it_is_the_regions() -> None:
    session = Session(Config(region="eu-central-1"), "x")

    assert session.client("ec2").meta.endpoint_url == "https://ec2.eu-central-1.amazonaws.com"
    session.close()


def test_the_environment_selects_fips_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    session = Session(Config(region="us-east-1"), "x")

    assert session.client("ec2").meta.endpoint_url == "https://ec2-fips.us-east-1.amazonaws.com"
    session.close()


def test_the_configuration_selects_fips_endpoints_of_all_services() -> None:
    session = Session(Config(region="us-east-1", fips=True), "csi-multi")
    hosts = {session.client(group).meta.endpoint_url for group in ("ec2", "quotas")}
    session.close()

    assert len(hosts) == 2
    assert all("fips" in host for host in hosts)


def test_the_user_agent_ends_with_what_is_configured(cloud: FakeEc2) -> None:
    for extra, end in (("team/db", "csi-multi team/db"), ("", "csi-multi")):
        session = Session(config(cloud, user_agent_extra=extra), "csi-multi")
        assert session.client("ec2").meta.config.user_agent.endswith(end)
        session.close()


def test_quotas_and_blocks_are_asked_for_at_places_of_their_own_where_the_endpoint_is_ec2s() -> None:
    session = Session(Config(region="eu-west-1", endpoint="https://ec2.eu-west-1.amazonaws.com"), "csi-multi")

    found = [session.client(group).meta.endpoint_url for group in ("ec2", "quotas", "blocks")]

    assert found == [f"https://{name}.eu-west-1.amazonaws.com" for name in ("ec2", "servicequotas", "ebs")]
    session.close()


def test_a_role_leads_to_its_account(cloud: FakeEc2, other_role: str) -> None:
    there, here = Client(config(cloud, role_arn=other_role)), Client(config(cloud))

    there.volumes([GONE])
    here.volumes([GONE])

    accounts = [call.account for call in cloud.seen if call.action == "DescribeVolumes"]
    assert accounts == ["210987654321", "123456789012"]
    there.close()
    here.close()


def test_a_role_is_assumed_once_for_all_clients(cloud: FakeEc2, other_role: str) -> None:
    ec2 = Client(config(cloud, role_arn=other_role))

    run_together(lambda: ec2.volumes([GONE]), ec2.zones, lambda: ec2.untag([GONE], ["x"]), lambda: ec2.volumes([GONE]))

    assert cloud.calls["AssumeRole"] == 1
    ec2.close()


def test_a_log_at_debug_has_no_credentials(cloud: FakeEc2, other_role: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    session = Session(config(cloud, role_arn=other_role), "csi-multi")

    client = session.client("ec2")
    client.describe_volumes()
    credentials = client._request_signer._credentials.get_frozen_credentials()
    session.close()

    assert credentials.token not in caplog.text
    assert credentials.secret_key not in caplog.text


def test_an_external_id_and_the_sessions_name_are_sent(cloud: FakeEc2, other_role: str) -> None:
    cloud.trust[other_role] = "only-us"
    ec2 = Client(config(cloud, role_arn=other_role, external_id="only-us"), "multi.csi/example com")

    ec2.zones()

    assert cloud.seen[0].get("RoleSessionName") == "multi.csi-example-com"
    ec2.close()


def test_a_role_that_may_not_be_assumed_is_named(cloud: FakeEc2, other_role: str) -> None:
    cloud.trust[other_role] = "only-us"
    ec2 = Client(config(cloud, role_arn=other_role))

    with pytest.raises(PermissionDenied, match=f"do not allow sts:AssumeRole: .*{other_role}"):
        ec2.zones()
    ec2.close()


def test_sts_that_is_away_is_unavailable_and_asked_again(cloud: FakeEc2, other_role: str) -> None:
    ec2 = Client(config(cloud, role_arn=other_role))
    cloud.fail("AssumeRole", "InternalFailure", status=500)

    with pytest.raises(Unavailable, match="AssumeRole"):
        ec2.zones()
    assert ec2.zones()
    ec2.close()


@pytest.fixture
def only_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a profile that has credentials, where nothing else has."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text("[source]\naws_access_key_id = AKIAOTHEROTHEROTHER0\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    return "source"


def test_a_profile_gives_the_credentials(cloud: FakeEc2, only_a_profile: str) -> None:
    ec2 = Client(config(cloud, profile=only_a_profile))

    assert ec2.zones()
    ec2.close()


def test_a_role_is_assumed_with_the_profile(cloud: FakeEc2, only_a_profile: str, other_role: str) -> None:
    ec2 = Client(config(cloud, profile=only_a_profile, role_arn=other_role))

    assert ec2.zones()
    ec2.close()


def test_a_profile_that_is_not_there_is_named(cloud: FakeEc2) -> None:
    ec2 = Client(config(cloud, profile="other"))

    with pytest.raises(Unauthenticated, match="other"):
        ec2.zones()


@pytest.mark.parametrize(
    ("endpoint", "others"),
    [
        ("", None),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("https://aws.example.com", "https://aws.example.com"),
        ("https://ec2.eu-west-1.amazonaws.com", None),
        ("https://vpce-1.ec2.eu-west-1.vpce.amazonaws.com", None),
    ],
)
def test_other_services_are_not_looked_for_where_only_ec2_is(endpoint: str, others: str | None) -> None:
    assert _other_endpoint(endpoint) == others
