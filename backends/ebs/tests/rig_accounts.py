"""Accounts: roles that let a caller into another one, and clients of boto3 for tests."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import rig_moto as moto
from .rig_calls import Answer, Call, Refusal
from .rig_environment import KEY, SECRET

if TYPE_CHECKING:
    from .rig_service import Service

OWN_ACCOUNT = "123456789012"
OTHER_ROLE = "arn:aws:iam::210987654321:role/csi"  # whoever assumes it is in another account


def answer(cloud: Service, call: Call) -> Answer:
    """Answer for STS; a role in `trust` is for those alone who know its external id."""
    role = call.get("RoleArn")
    if role in cloud.trust and call.get("ExternalId") != cloud.trust[role]:
        raise Refusal("AccessDenied", f"User is not authorized to perform: sts:AssumeRole on resource: {role}", 403)
    return moto.ask(call)


@functools.cache
def client(service: str, endpoint: str, region: str) -> Any:
    """Return a client that repeats nothing and says at once what went wrong. They are thread-safe, and slow to make."""
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
