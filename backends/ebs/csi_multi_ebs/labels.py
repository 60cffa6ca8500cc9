"""Labels: the EC2 tags of volumes and snapshots, which hold the owner, the stamp, and texts for people.

A stamp is written like a query string with "@" for "%" and "+" for "&", split into pieces. It ends with "+.", so
that a lost piece is noticed: csi-multi/stamp.0 = name=pvc-1+digest=ab12+source=snapshot:snap-0a+.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl, quote, unquote, urlencode

from csi_multi.contract import (
    GroupSnapshotRequest,
    InvalidArgument,
    Setting,
    SnapshotRequest,
    Source,
    SourceKind,
    Stamp,
    VolumeRequest,
    leaf,
)

from .config import Config, GroupSnapshotParameters, MutableParameters, Parameters, SnapshotParameters
from .resources import VOLUME_ID, Tags
from .user_tags import (
    CLUSTER,
    CREATED_FOR,
    IOPS_PER_GB,
    MAX_TAGS,
    MAX_VALUE,
    PREFIX,
    SNAPSHOT_NAME,
    SNAPSHOT_TEMPLATE_NAMES,
    VOLUME_NAME,
    VOLUME_TEMPLATE_NAMES,
    fit_value,
    render_template,
    tag_problem,
)
from .volume_types import kept_iops_per_gib

OWNER = f"{PREFIX}owner"
NAME = f"{PREFIX}name"
STAMP = f"{PREFIX}stamp."  # followed by the piece's number
NAME_IN_CONSOLE = "Name"
KUBERNETES_CLUSTER = "KubernetesCluster"
SOURCE = f"{PREFIX}source"  # handle of the volume of a snapshot
GROUP = f"{PREFIX}group"  # handle of the group that a snapshot is a member of; its stamp is the group's then
GROUP_NAME = f"{PREFIX}group-name"
GROUP_LIST = f"{PREFIX}group-list."  # followed by the piece's number: the members and their volumes, see list_tags
GROUP_MEMBERS = f"{PREFIX}group-members"  # how many there are, and a hash of their volumes, see members_tag
FIRST_ATTACHMENT = f"{PREFIX}first-attachment"  # of a volume that was created empty, see first_attachment.py
NO_ATTACHMENT = "none"
INITIALIZED_FIRST = f"{PREFIX}initialized-first"  # of a volume that is attached only once EC2 has loaded it
NOT_CHECKED = "%s %s: lookups in EC2 did not show it, so its tags were not checked; it was deleted by its id"  # log

LIST_PIECE = 7  # members that a tag can list

_END = "+."

log = logging.getLogger(__name__)


def owner_tag(driver: str, cluster: str, instance: str) -> str:
    """Return the value of the tag OWNER for the resources of an instance."""
    return "/".join(_escaped(part, safe=":") for part in (driver, cluster, instance))


def is_ours(tags: Tags, setting: Setting) -> bool:
    """Return whether a resource belongs to this instance of this driver in this cluster."""
    return tags.get(OWNER) == owner_tag(setting.driver, setting.cluster, setting.instance)


def volume_tags(request: VolumeRequest, setting: Setting, config: Config) -> dict[str, str]:
    """Return all tags of a new volume.

    Raises InvalidArgument for a tag of the class that EC2 would refuse, or that is reserved for the driver.
    """
    parameters = request.parameters or Parameters()
    mutable = request.mutable or MutableParameters()
    wanted = {
        **config.extra_tags,
        **_specified(parameters.tags, VOLUME_TEMPLATE_NAMES, request.metadata, config),
        **_specified(mutable.tags, VOLUME_TEMPLATE_NAMES, request.metadata, config),
    }
    for key in _deleted(mutable):
        wanted.pop(key, None)
    identity = _identity(request.stamp, setting, config)
    if per_gb := kept_iops_per_gib(parameters, mutable):
        identity[IOPS_PER_GB] = str(per_gb)
    if request.source and parameters.block_attach_until_initialized:
        identity[INITIALIZED_FIRST] = "true"
    unused = {} if request.source else {FIRST_ATTACHMENT: NO_ATTACHMENT}  # without it the volume counts as used
    cluster = {KUBERNETES_CLUSTER: config.kubernetes_cluster} if config.kubernetes_cluster else {}
    names = {VOLUME_NAME: request.name, **_created_for(request.metadata), **cluster, **_name(request.name, config)}
    return _all(identity, wanted, unused | names)


def snapshot_tags(request: SnapshotRequest, setting: Setting, config: Config) -> dict[str, str]:
    """Return all tags of a new snapshot. Raises InvalidArgument as volume_tags does."""
    parameters = request.parameters or SnapshotParameters()
    wanted = {**config.extra_tags, **_specified(parameters.tags, SNAPSHOT_TEMPLATE_NAMES, request.metadata, config)}
    identity = {**_identity(request.stamp, setting, config), SOURCE: request.source}
    names = {SNAPSHOT_NAME: request.name, **_created_for(request.metadata), **_name(request.name, config)}
    return _all(identity, wanted, names)


def group_tags(request: GroupSnapshotRequest, handle: str, setting: Setting, config: Config) -> dict[str, str]:
    """Return all tags of each member of a new group: EC2 sets the same ones on all. Raises as volume_tags does."""
    parameters = request.parameters or GroupSnapshotParameters()
    name = request.stamp.name
    identity = _identity(request.stamp, setting, config)
    del identity[NAME]  # a snapshot of this name is no member
    identity |= {GROUP: handle, GROUP_NAME: leaf(name), GROUP_MEMBERS: members_tag(request.sources)}
    wanted = {**config.extra_tags, **_specified(parameters.tags, SNAPSHOT_TEMPLATE_NAMES, {}, config)}
    later = list_tags({f"snap-{one}": one for one in request.sources})  # as many as there will be
    tags = _all(identity, {**wanted, **later}, _name(name, config))
    return {key: text for key, text in tags.items() if key not in later}


def members_tag(volumes: Collection[str]) -> str:
    """Return the value of GROUP_MEMBERS for a group of these volumes."""
    digest = hashlib.sha256("\n".join(sorted(volumes)).encode()).hexdigest()
    return f"{len(volumes)}:{digest[:32]}"


def list_tags(members: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that list the members of a group: the volume by the snapshot, both without their prefixes."""
    pairs = [f"{id.removeprefix('snap-')}:{volume.removeprefix('vol-')}" for id, volume in sorted(members.items())]
    lines = [pairs[start : start + LIST_PIECE] for start in range(0, len(pairs), LIST_PIECE)]
    return {f"{GROUP_LIST}{number}": " ".join(line) for number, line in enumerate(lines)}


def read_list(tags: Tags) -> dict[str, str]:
    """Return the members that the tags list, and their volumes; empty where they do not list as many as there are."""
    pieces = [text for key, text in sorted(tags.items()) if key.startswith(GROUP_LIST)]
    pairs = [pair.partition(":") for piece in pieces for pair in piece.split()]
    found = {f"snap-{id}": f"vol-{volume}" for id, _, volume in pairs}
    return found if tags.get(GROUP_MEMBERS) == members_tag(found.values()) else {}


def import_tags(stamp: Stamp, setting: Setting, config: Config) -> dict[str, str]:
    """Return the tags to add to a volume that is imported; its other tags stay."""
    return _identity(stamp, setting, config)


def tag_changes(mutable: MutableParameters, tags: Tags, config: Config) -> tuple[dict[str, str], list[str]]:
    """Return (tags to set, keys of tags to remove) for a change of a volume that has these tags.

    Templates refer to the claim that the volume was created for. Tags that have the value already are left out.
    Raises InvalidArgument as volume_tags does, and when there would be too many tags.
    """
    metadata = {key: tags[CREATED_FOR + key] for key in VOLUME_TEMPLATE_NAMES.values() if CREATED_FOR + key in tags}
    wanted = _specified(mutable.tags, VOLUME_TEMPLATE_NAMES, metadata, config)
    unwanted = [key for key in _deleted(mutable) if key not in wanted]
    if mutable.iops_per_gb and mutable.allow_auto_iops_increase_on_modify:
        wanted[IOPS_PER_GB] = str(mutable.iops_per_gb)
    elif mutable.type or mutable.iops or mutable.iops_per_gb or mutable.allow_auto_iops_increase_on_modify is False:
        unwanted.append(IOPS_PER_GB)
    _refuse_too_many({**tags, **wanted}.keys() - set(unwanted))
    return {key: text for key, text in wanted.items() if tags.get(key) != text}, [
        key for key in unwanted if key in tags
    ]


def read_stamp(tags: Tags) -> Stamp | None:
    """Return the stamp; None for a resource without one, or with an incomplete one."""
    text, number = "", 0
    while piece := tags.get(f"{STAMP}{number}", ""):
        text, number = text + piece, number + 1
    owner = tags.get(OWNER, "").split("/")
    if len(owner) != 3 or not text.endswith(_END):
        return None
    fields = dict(parse_qsl(text[: -len(_END)].replace("+", "&").replace("@", "%"), keep_blank_values=True))
    kind, _, handle = fields.get("source", "").partition(":")
    if "name" not in fields or kind not in ("", *(one.value for one in SourceKind)):
        return None
    return Stamp(
        driver=_unescaped(owner[0]),
        cluster=_unescaped(owner[1]),
        name=fields["name"],
        digest=fields.get("digest", ""),
        source=Source(kind=SourceKind(kind), handle=handle) if kind else None,
        context={key[2:]: value for key, value in fields.items() if key.startswith("c.")},
    )


def snapshot_source(tags: Tags) -> str:
    """Return the handle of a snapshot's volume; "" without the tag, or with another text in it."""
    return text if VOLUME_ID.fullmatch(text := tags.get(SOURCE, "")) else ""


def _identity(stamp: Stamp, setting: Setting, config: Config) -> dict[str, str]:
    """Return the tags by which the driver identifies a resource."""
    fields = [("name", stamp.name), ("digest", stamp.digest)]
    if stamp.source:
        fields.append(("source", f"{stamp.source.kind.value}:{stamp.source.handle}"))
    fields += [(f"c.{key}", value) for key, value in stamp.context.items()]
    text = _query(fields) + _END
    pieces = [text[start : start + MAX_VALUE] for start in range(0, len(text), MAX_VALUE)]
    cluster = {CLUSTER + config.kubernetes_cluster: "owned"} if config.kubernetes_cluster else {}
    return {
        OWNER: owner_tag(stamp.driver, stamp.cluster, setting.instance),
        NAME: leaf(stamp.name),
        **{f"{STAMP}{number}": piece for number, piece in enumerate(pieces)},
        **cluster,
    }


def _query(fields: list[tuple[str, str]]) -> str:
    text = urlencode(fields, quote_via=quote, safe="/:")
    return text.replace("~", "%7E").replace("&", "+").replace("%", "@")


def _escaped(text: str, safe: str) -> str:
    return quote(text, safe=safe).replace("~", "%7E").replace("%", "@")


def _unescaped(text: str) -> str:
    return unquote(text.replace("@", "%"))


def _specified(
    given: Mapping[str, str], names: Mapping[str, str], metadata: Mapping[str, str], config: Config
) -> dict[str, str]:
    """Return the tags of tagSpecification_N parameters."""
    tags: dict[str, str] = {}
    for parameter, text in sorted(given.items()):
        try:
            key, value = _tag(text, names, metadata)
        except InvalidArgument as error:
            if config.invalid_tags == "skip":
                log.warning("parameters: %r: %s; the tag is left out", parameter, error)
                continue
            raise InvalidArgument(f"parameters: {parameter!r}: {error}") from None
        if tags.setdefault(key, value) != value:
            raise InvalidArgument(f"parameters: {parameter!r}: tag {key!r} has two values; leave one out")
    return tags


def _tag(text: str, names: Mapping[str, str], metadata: Mapping[str, str]) -> tuple[str, str]:
    key, equals, template = text.partition("=")
    if not equals:
        raise InvalidArgument(f"{text!r} is not a tag; write it as key=value")
    value = render_template(template, names, metadata)
    if reason := tag_problem(key, value):
        raise InvalidArgument(reason)
    return key, value


def _deleted(mutable: MutableParameters) -> list[str]:
    """Return the keys of tagDeletion_N parameters."""
    for parameter, key in mutable.deletions.items():
        if reason := tag_problem(key):
            raise InvalidArgument(f"parameters: {parameter!r}: {reason}")
    return list(mutable.deletions.values())


def _name(name: str, config: Config) -> dict[str, str]:
    """Return the name that EC2's console shows; a tag of the class with this key counts more."""
    return {NAME_IN_CONSOLE: f"{config.kubernetes_cluster}-dynamic-{name}"} if config.kubernetes_cluster else {}


def _created_for(metadata: Mapping[str, str]) -> dict[str, str]:
    keys = (*VOLUME_TEMPLATE_NAMES.values(), *SNAPSHOT_TEMPLATE_NAMES.values())
    return {CREATED_FOR + key: metadata[key] for key in keys if metadata.get(key)}


def _all(identity: dict[str, str], wanted: Mapping[str, str], informative: Mapping[str, str]) -> dict[str, str]:
    """Return all tags together: of the informative ones only as many as EC2 still accepts."""
    tags = {**identity, **wanted}
    _refuse_too_many(tags)
    fitting = [(key, text) for key, text in informative.items() if key not in tags][: MAX_TAGS - len(tags)]
    return tags | {key: fit_value(text) for key, text in fitting}


def _refuse_too_many(tags: Mapping[str, str] | set[str]) -> None:
    if len(tags) > MAX_TAGS:
        raise InvalidArgument(
            f"{len(tags)} tags are too many: EC2 allows {MAX_TAGS}, the driver's own tags included; remove some"
        )
