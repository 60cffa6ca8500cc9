"""What is written on a volume or snapshot, as EC2 tags: whose it is, the stamp, and what people want to see.

A stamp is written like a query string with "@" for "%" and "+" for "&", in pieces, and ends with "+.", so
that a lost piece is noticed: csi-multi/stamp.0 = name=pvc-1+digest=ab12+source=snapshot:snap-0a+.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlencode

from csi_multi.contract import InvalidArgument, Setting, SnapshotRequest, Source, SourceKind, Stamp, VolumeRequest, leaf

from .config import Config, MutableParameters, Parameters, SnapshotParameters
from .rows import Tags
from .tag_rules import (
    CLUSTER,
    CREATED_FOR,
    IOPS_PER_GB,
    MOST,
    PREFIX,
    SNAPSHOT_NAME,
    VALUE,
    VOLUME_NAME,
    fit,
    objection,
)
from .templates import OF_SNAPSHOT, OF_VOLUME, render
from .types import ratio

OWNER = f"{PREFIX}owner"
NAME = f"{PREFIX}name"
STAMP = f"{PREFIX}stamp."  # followed by the piece's number
SOURCE = f"{PREFIX}source"  # handle of the volume that a snapshot is of

_END = "+."


def owner(driver: str, cluster: str, instance: str) -> str:
    """Return the value of the tag that says whose a resource is."""
    return "/".join(_escaped(part, safe=":") for part in (driver, cluster, instance))


def ours(tags: Tags, setting: Setting) -> bool:
    """Whether a resource was made by this instance of this driver in this cluster."""
    return tags.get(OWNER) == owner(setting.driver, setting.cluster, setting.instance)


def of_volume(request: VolumeRequest, setting: Setting, config: Config) -> dict[str, str]:
    """Return all tags that a volume is made with.

    Raises InvalidArgument for a tag of the class that EC2 would refuse, or that is the driver's own.
    """
    parameters = request.parameters or Parameters()
    mutable = request.mutable or MutableParameters()
    wanted = {
        **config.extra_tags,
        **_specified(parameters.tags, OF_VOLUME, request.metadata),
        **_specified(mutable.tags, OF_VOLUME, request.metadata),
    }
    for key in _deleted(mutable):
        wanted.pop(key, None)
    facts = _identity(request.stamp, setting, config)
    if per_gb := ratio(parameters, mutable):
        facts[IOPS_PER_GB] = str(per_gb)
    return _all(facts, wanted, {VOLUME_NAME: request.name, **_for_people(request.metadata)})


def of_snapshot(request: SnapshotRequest, setting: Setting, config: Config) -> dict[str, str]:
    """Return all tags that a snapshot is made with. Raises InvalidArgument as of_volume does."""
    parameters = request.parameters or SnapshotParameters()
    wanted = {**config.extra_tags, **_specified(parameters.tags, OF_SNAPSHOT, request.metadata)}
    facts = {**_identity(request.stamp, setting, config), SOURCE: request.source}
    return _all(facts, wanted, {SNAPSHOT_NAME: request.name, **_for_people(request.metadata)})


def of_import(stamp: Stamp, setting: Setting, config: Config) -> dict[str, str]:
    """Return the tags that a volume gets which the driver did not make: what people wrote on it stays."""
    return _identity(stamp, setting, config)


def of_change(mutable: MutableParameters, tags: Tags) -> tuple[dict[str, str], list[str]]:
    """Return (tags to set, keys of tags to remove) for a change of a volume that has these tags.

    Templates mean the claim that the volume was made for. What is so already is left out. Raises
    InvalidArgument as of_volume does, and when there would be too many.
    """
    metadata = {key: tags[CREATED_FOR + key] for key in OF_VOLUME.values() if CREATED_FOR + key in tags}
    wanted = _specified(mutable.tags, OF_VOLUME, metadata)
    unwanted = [key for key in _deleted(mutable) if key not in wanted]
    if mutable.iops_per_gb and mutable.allow_auto_iops_increase_on_modify:
        wanted[IOPS_PER_GB] = str(mutable.iops_per_gb)
    elif mutable.type or mutable.iops or mutable.iops_per_gb or mutable.allow_auto_iops_increase_on_modify is False:
        unwanted.append(IOPS_PER_GB)
    _refuse_too_many({**tags, **wanted}.keys() - set(unwanted))
    return {key: text for key, text in wanted.items() if tags.get(key) != text}, [
        key for key in unwanted if key in tags
    ]


def stamp(tags: Tags) -> Stamp | None:
    """Return the stamp; None for what never had one, or has lost a part of it."""
    text, number = "", 0
    while piece := tags.get(f"{STAMP}{number}", ""):
        text, number = text + piece, number + 1
    whose = tags.get(OWNER, "").split("/")
    if len(whose) != 3 or not text.endswith(_END):
        return None
    fields = dict(parse_qsl(text[: -len(_END)].replace("+", "&").replace("@", "%"), keep_blank_values=True))
    kind, _, handle = fields.get("source", "").partition(":")
    if "name" not in fields or kind not in ("", *(one.value for one in SourceKind)):
        return None
    return Stamp(
        driver=_plain(whose[0]),
        cluster=_plain(whose[1]),
        name=fields["name"],
        digest=fields.get("digest", ""),
        source=Source(kind=SourceKind(kind), handle=handle) if kind else None,
        context={key[2:]: value for key, value in fields.items() if key.startswith("c.")},
    )


def snapshot_source(tags: Tags) -> str:
    """Return the handle of the volume that a snapshot is of; "" when it does not say."""
    return tags.get(SOURCE, "")


def _identity(stamp: Stamp, setting: Setting, config: Config) -> dict[str, str]:
    """Return what the driver knows a resource by."""
    fields = [("name", stamp.name), ("digest", stamp.digest)]
    if stamp.source:
        fields.append(("source", f"{stamp.source.kind.value}:{stamp.source.handle}"))
    fields += [(f"c.{key}", value) for key, value in stamp.context.items()]
    text = _query(fields) + _END
    pieces = [text[start : start + VALUE] for start in range(0, len(text), VALUE)]
    cluster = {CLUSTER + config.kubernetes_cluster: "owned"} if config.kubernetes_cluster else {}
    return {
        OWNER: owner(stamp.driver, stamp.cluster, setting.instance),
        NAME: leaf(stamp.name),
        **{f"{STAMP}{number}": piece for number, piece in enumerate(pieces)},
        **cluster,
    }


def _query(fields: list[tuple[str, str]]) -> str:
    text = urlencode(fields, quote_via=quote, safe="/:")
    return text.replace("~", "%7E").replace("&", "+").replace("%", "@")


def _escaped(text: str, safe: str) -> str:
    return quote(text, safe=safe).replace("~", "%7E").replace("%", "@")


def _plain(text: str) -> str:
    return unquote(text.replace("@", "%"))


def _specified(given: Mapping[str, str], names: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of tagSpecification_N parameters."""
    tags: dict[str, str] = {}
    for parameter, text in sorted(given.items()):
        try:
            key, value = _tag(text, names, metadata)
        except InvalidArgument as error:
            raise InvalidArgument(f"parameters: {parameter!r}: {error}") from None
        if tags.setdefault(key, value) != value:
            raise InvalidArgument(f"parameters: {parameter!r}: tag {key!r} is given twice; leave one out")
    return tags


def _tag(text: str, names: Mapping[str, str], metadata: Mapping[str, str]) -> tuple[str, str]:
    key, equals, template = text.partition("=")
    if not equals:
        raise InvalidArgument(f"{text!r} is not a tag; write it as key=value")
    value = render(template, names, metadata)
    if reason := objection(key, value):
        raise InvalidArgument(reason)
    return key, value


def _deleted(mutable: MutableParameters) -> list[str]:
    """Return the keys of tagDeletion_N parameters."""
    for parameter, key in mutable.deletions.items():
        if reason := objection(key):
            raise InvalidArgument(f"parameters: {parameter!r}: {reason}")
    return list(mutable.deletions.values())


def _for_people(metadata: Mapping[str, str]) -> dict[str, str]:
    keys = (*OF_VOLUME.values(), *OF_SNAPSHOT.values())
    return {CREATED_FOR + key: metadata[key] for key in keys if metadata.get(key)}


def _all(facts: dict[str, str], wanted: Mapping[str, str], people: Mapping[str, str]) -> dict[str, str]:
    """Put all tags together; of those for people, as many as have room."""
    tags = {**facts, **wanted}
    _refuse_too_many(tags)
    room = list(people.items())[: MOST - len(tags)]
    return tags | {key: fit(text) for key, text in room}


def _refuse_too_many(tags: Mapping[str, str] | set[str]) -> None:
    if len(tags) > MOST:
        raise InvalidArgument(f"{len(tags)} tags are too many: EC2 takes {MOST}, of which the driver needs some itself")
