"""STS and Service Quotas for tests, and clients of boto3."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from . import fake_ec2_moto as moto
from .aws_environment import KEY, SECRET
from .fake_ec2_calls import Answer, Call, Refusal

if TYPE_CHECKING:
    from .fake_ec2_service import Service

OWN_ACCOUNT = "123456789012"
OTHER_ROLE = "arn:aws:iam::210987654321:role/csi"  # whoever assumes it is in another account


def answer_sts(cloud: Service, call: Call) -> Answer:
    """Answer for STS; a role in `trust` is only for callers with its external id."""
    role = call.get("RoleArn")
    if role in cloud.trust and call.get("ExternalId") != cloud.trust[role]:
        raise Refusal("AccessDenied", f"User is not authorized to perform: sts:AssumeRole on resource: {role}", 403)
    return moto.ask(call)


@functools.cache
def client(service: str, endpoint: str, region: str) -> Any:
    """Return a client that retries nothing. Clients are thread-safe and slow to create."""
    import boto3
    from botocore.config import Config

    return boto3.Session().client(
        service,
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 1}, max_pool_connections=64, proxies={}),
    )


QUOTAS = "servicequotas"  # in signatures
LARGEST_PAGE = 100
STORAGE = {  # by volume type
    "gp2": "L-D18FCD1D",
    "gp3": "L-7A658B76",
    "io1": "L-FD252861",
    "io2": "L-09BD8365",
    "st1": "L-82ACEF56",
    "sc1": "L-17AF77E8",
    "standard": "L-9CF3C2EB",
}
USUAL = {  # by code: how many snapshots, how many TiB of each type, and TiB of modifications
    "L-309BACF6": 100000.0,
    **dict.fromkeys(STORAGE.values(), 300.0),
    "L-B9F7C487": 500.0,
}


def call_of(body: bytes, account: str, region: str) -> Call:
    """Read a request. A header has the action; only one is known."""
    params = {key: str(value) for key, value in json.loads(body).items()}
    return Call("ListServiceQuotas", params, account, region, QUOTAS)


def refuse_more(cloud: Service, kind: str, used: int, size: int) -> None:
    """Raise when the quota of a type, with so many GiB in use, is too small for a volume."""
    quota = cloud.quotas.get(STORAGE.get(kind, ""), float("inf"))
    if used + size > quota * 1024:
        raise Refusal("VolumeLimitExceeded", f"You have exceeded your maximum {kind} storage limit of {quota} TiB.")


def answer_quotas(cloud: Service, call: Call) -> Answer:
    if call.get("ServiceCode") != "ebs":
        raise Refusal("NoSuchResourceException", f"{call.get('ServiceCode')!r} has no quotas here.")
    size, first = int(call.get("MaxResults", str(LARGEST_PAGE))), int(call.get("NextToken", "0"))
    if not 1 <= size <= LARGEST_PAGE:
        raise Refusal("IllegalArgumentException", f"MaxResults is {size}.")
    size = min(size, cloud.quotas_per_page)
    told = [
        {"ServiceCode": "ebs", "QuotaCode": code, "QuotaName": f"quota {code}", "Value": value, "Unit": "None"}
        for code, value in cloud.quotas.items()
    ]
    more = {"NextToken": str(first + size)} if first + size < len(told) else {}
    return Answer(json.dumps({"Quotas": told[first : first + size], **more}).encode())
