"""Signatures are those of botocore's own signer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from csi_multi_ebs.signing import CONTENT_TYPE, Signer

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
KEYS = ReadOnlyCredentials("AKIATESTSTESTSTESTS0", "not/a+secret", None)
BODY = b"Action=CreateTags&Tag.1.Value=%C3%BC+%26"


def by_botocore(
    monkeypatch: pytest.MonkeyPatch, host: str, region: str, keys: ReadOnlyCredentials, now: datetime
) -> dict[str, str]:
    monkeypatch.setattr(auth, "get_current_datetime", lambda: now.replace(tzinfo=None))
    request = AWSRequest("POST", f"https://{host}/", {"Content-Type": CONTENT_TYPE}, BODY)
    auth.SigV4Auth(keys, "ec2", region).add_auth(request)
    return dict(request.headers.items())


@pytest.mark.parametrize("token", [None, "a/session+token=="], ids=["keys", "session"])
@pytest.mark.parametrize("host", ["ec2.eu-west-1.amazonaws.com", "vpce-1.ec2.eu-west-1.vpce.amazonaws.com:8443"])
def test_a_signature_is_botocores(monkeypatch: pytest.MonkeyPatch, host: str, token: str | None) -> None:
    keys = KEYS._replace(token=token)

    signed = Signer(host, "eu-west-1").headers(BODY, keys, NOON)

    assert signed.pop("Host") == host
    assert signed == by_botocore(monkeypatch, host, "eu-west-1", keys, NOON)


def test_a_signer_signs_on_the_next_day_and_with_renewed_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    signer, host = Signer("ec2.us-east-1.amazonaws.com", "us-east-1"), "ec2.us-east-1.amazonaws.com"
    renewed = ReadOnlyCredentials("AKIAOTHEROTHEROTHER0", "another", "token")
    for keys, now in ((KEYS, NOON), (KEYS, NOON + timedelta(days=1)), (renewed, NOON + timedelta(days=1))):
        signed = signer.headers(BODY, keys, now)

        assert signed["Authorization"] == by_botocore(monkeypatch, host, "us-east-1", keys, now)["Authorization"]
