"""Service Quotas of EBS: JSON in and out, page by page, and other quotas beside those of storage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .rig_calls import Answer, Call, Refusal

if TYPE_CHECKING:
    from .rig_service import Service

NAME = "servicequotas"  # in signatures
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
    """Read a request. Which action it is stands in a header: we know only one."""
    params = {key: str(value) for key, value in json.loads(body).items()}
    return Call("ListServiceQuotas", params, account, region, NAME)


def refuse_more(cloud: Service, kind: str, used: int, size: int) -> None:
    """Raise for a volume that a type with so many GiB in use has no quota for."""
    quota = cloud.quotas.get(STORAGE.get(kind, ""), float("inf"))
    if used + size > quota * 1024:
        raise Refusal("VolumeLimitExceeded", f"You have exceeded your maximum {kind} storage limit of {quota} TiB.")


def answer(cloud: Service, call: Call) -> Answer:
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
