"""IAM for the documented policies: what an EC2 call needs, and whether statements allow it.

Which resources a call is judged by, and which tags are looked at, is of AWS's "Actions, resources, and condition
keys for Amazon EC2". Tags in a request are held against what is made, not against what it is made from: a policy
must not need it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from . import fake_ec2_moto
from .fake_ec2 import Call

Words = Mapping[str, tuple[str, ...]]
Statement = Mapping[str, Any]


@dataclass(frozen=True)
class Need:
    """One thing that must be allowed for a call to be done."""

    action: str
    resource: str
    context: Words = field(default_factory=dict)


def allowed(statements: list[Statement], need: Need) -> bool:
    return any(_allows(one, need) for one in statements)


def _allows(statement: Statement, need: Need) -> bool:
    return (
        statement["Effect"] == "Allow"
        and need.action in several(statement["Action"])
        and any(fnmatchcase(need.resource, pattern) for pattern in several(statement["Resource"]))
        and all(
            OPERATORS[operator](need.context.get(key, ()), several(patterns))
            for operator, wanted in statement.get("Condition", {}).items()
            for key, patterns in wanted.items()
        )
    )


def several(words: str | list[str]) -> list[str]:
    return [words] if isinstance(words, str) else words


OPERATORS: dict[str, Callable[[tuple[str, ...], list[str]], bool]] = {
    "StringEquals": lambda found, wanted: bool(found) and found[0] in wanted,
    "StringLike": lambda found, wanted: bool(found) and any(fnmatchcase(found[0], one) for one in wanted),
    "ForAllValues:StringEquals": lambda found, wanted: set(found) <= set(wanted),
    "Null": lambda found, wanted: (not found) == (wanted == ["true"]),
}

MADE = {
    "CreateVolume": "volume",
    "CopyVolumes": "volume",
    "CreateSnapshot": "snapshot",
    "CreateSnapshots": "snapshot",
}
USED = (
    *("VolumeId", "SourceVolumeId", "SnapshotId", "InstanceId", "ResourceId", "SourceSnapshotId"),
    *("InstanceSpecification.InstanceId", "FirstSnapshotId", "SecondSnapshotId"),
)
KINDS = {"vol": "volume", "snap": "snapshot", "i": "instance"}


def needs(call: Call, tags: Callable[[str], Mapping[str, str]]) -> Iterator[Need]:
    """Yield what a call needs; `tags` says those of what is there."""
    action = f"{call.service}:{call.action}"
    if call.action.startswith("Describe"):
        yield Need(action, "*")
        return
    written = {f"aws:RequestTag/{key}": (value,) for key, value in call.tags()}
    request = {**written, "aws:TagKeys": tuple(key for key, _ in call.tags())}
    if kind := MADE.get(call.action):
        yield Need(action, _arn(call, kind, "*"), request)
        yield Need("ec2:CreateTags", _arn(call, kind, "*"), {**request, "ec2:CreateAction": (call.action,)})
    elif not call.action.endswith("Tags"):
        request = {}
    used = [one for name in USED for one in (call.get(name), *call.many(name)) if one]
    for id in [*used, *_cut_by(call)]:
        own = {f"aws:ResourceTag/{key}": (value,) for key, value in tags(id).items()}
        yield Need(action, _arn(call, KINDS[id.partition("-")[0]], id), own if kind else {**request, **own})


def _cut_by(call: Call) -> list[str]:
    """Return the volumes that CreateSnapshots cuts: those of an instance that it does not leave out."""
    instance = call.get("InstanceSpecification.InstanceId")
    out = call.many("InstanceSpecification.ExcludeDataVolumeId")
    volumes = [volume for volume in fake_ec2_moto.store(call).volumes.values() if instance in volume.held]
    return [volume.id for volume in volumes if not volume.root and volume.id not in out]


def _arn(call: Call, kind: str, id: str) -> str:
    account = "" if kind == "snapshot" else call.account
    return f"arn:aws:ec2:{call.region}:{account}:{kind}/{id.replace('*', 'new')}"
