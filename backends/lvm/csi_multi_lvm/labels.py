"""Labels: the names, handles and LVM tags of the driver's logical volumes.

csi-<leaf>    a volume                   csit-<leaf>   a snapshot that a clone is copied from
csis-<leaf>   a snapshot                 csix-<leaf>   space that is zeroed before a volume grows into it

The tags hold the stamp, and the state of long work. LVM accepts tags of up to 1024 bytes of
[A-Za-z0-9_+.-/=!:#&] (lvm(8)), so text is written as in a URL's query, with "!" instead of "%", and people can
still read it: csi.0=name=pvc-1&digest=ab12&source=snapshot:n1/vg0/s!C3!A4
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

from csi_multi.contract import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Source,
    SourceKind,
    Stamp,
    WrongNode,
    ids,
)

VOLUME_PREFIX = "csi-"
SNAPSHOT_PREFIX = "csis-"
CLONE_SOURCE_PREFIX = "csit-"
ZEROED_SPACE_PREFIX = "csix-"
PREFIXES = (VOLUME_PREFIX, SNAPSHOT_PREFIX, CLONE_SOURCE_PREFIX, ZEROED_SPACE_PREFIX)
GROUP = re.compile(r"[A-Za-z0-9_.+][A-Za-z0-9_.+-]*")
MEMBER = re.compile(r"(x-[a-z2-7]{26})-[0-9]+")  # leaf; `ids.leaf` returns no name with a hyphen after a hash
MAX_DEVICE_NAME = 127 - len("_rimage_10_imeta")  # bytes: the kernel's limit less the suffixes of LVM

BYTES = re.compile(r"[0-9]{1,18}")
SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]*)?")
EXTENSION = re.compile(r"[0-9]{1,3}:[0-9]{1,6}")

TAG_PREFIX = "csi."  # of every tag that the driver writes
OWNER = "csi.owner="  # driver and cluster
STAMP = "csi."  # followed by a digit: the stamp in parts
STAMP_PART = 1000  # bytes
INFORMATIVE = 200  # bytes of a tag that only people read

NEW = "csi.new"  # a thick volume that was never used: it still holds old data, signatures included
FRESH = "csi.fresh"  # never formatted nor written by a user; old signatures are removed
FORMATTING = "csi.formatting"  # mkfs began on it
DIRTY = "csi.dirty"  # a thick volume that shows old data wherever its user has not written
UNWIPED = "csi.unwiped"  # a thick volume that must not be wiped
ZERO = "csi.zero"  # must be zeroed, even where a filesystem would hide old data
READING = "csi.reading"  # not opened since it was activated to read a snapshot of it

BYTES_ZEROED = "csi.zeroed="  # so far
INTENDED_SIZE = "csi.todo="  # bytes that an incomplete volume must get
BYTES_COPIED = "csi.copied="  # so far
SOURCE_SIZE = "csi.size="  # bytes of a snapshot's source when the snapshot was created
SOURCE_HANDLE = "csi.source="  # of a snapshot
CREATED_AT = "csi.at="  # seconds since 1970, with a fraction
AUTO_EXTEND = "csi.extend="  # <threshold>:<percent> of a thick snapshot
LAYOUT = "csi.layout="  # of a thick volume; layout.to_tag writes it
THICK_SNAPSHOT = (
    "csi.thick"  # on a thick snapshot; on another volume: lvcreate was killed before that became a snapshot
)
INVALID = "csi.invalid"  # a thick snapshot that was found to have overflowed

GROUP_LEAF = "csi.group="  # of a member of a group snapshot: the group's leaf
PARTIAL = "csi.partial"  # on a group's first member: not all of the group exists yet, so none of it is shown
REMOVING = "csi.removing"  # on a group's first member: the group is being removed, and none of it is shown

IMPORTED = "csi.imported"  # it existed before the driver, which never deletes it
ORIGINAL_NAME = "csi.was="  # of an imported volume

Tags = Collection[str]


# Names and handles


@dataclass(frozen=True, slots=True)
class Handles:
    """The handles of one instance: `<node>/<group>/<leaf>`."""

    node: str
    group: str

    def leaf_for(self, name: str) -> str:
        """Return the leaf for a requested name, hashed when the handle or the device's name would be too long.

        Raises InvalidArgument when even that is too long.
        """
        for leaf in (ids.leaf(name), ids.leaf(name, 0)):
            if self._is_short(leaf):
                return leaf
        raise self._too_long()

    def member_leaf(self, group: str, number: int) -> str:
        """Return the leaf of a member of a group snapshot, under which no other snapshot is. Raises InvalidArgument."""
        leaf = f"{ids.leaf('x-' + group)}-{number}"
        if not self._is_short(leaf):
            raise self._too_long()
        return leaf

    def _too_long(self) -> InvalidArgument:
        return InvalidArgument(
            f"the names of node {self.node!r} and volume group {self.group!r} are too long together: a handle of at "
            f"most {ids.MAX_HANDLE} bytes contains both; give the group a shorter name with vgrename"
        )

    def handle(self, leaf: str) -> str:
        return f"{self.node}/{self.group}/{leaf}"

    def _is_short(self, leaf: str) -> bool:
        """Return whether the handle, and the name of the device of a snapshot, are within their limits."""
        device = device_name(self.group, SNAPSHOT_PREFIX + leaf)
        return len(self.handle(leaf)) <= ids.MAX_HANDLE and len(device) <= MAX_DEVICE_NAME

    def leaf(self, kind: str, handle: str) -> str:
        """Return the leaf. Raises NotFound, WrongNode, FailedPrecondition for another volume group."""
        node, group, leaf = parse_handle(kind, handle)
        if node != self.node:
            raise WrongNode(
                f"{kind} {handle!r} is on node {node!r}, and this is node {self.node!r}; send the request to the "
                "driver on that node"
            )
        if group != self.group:
            raise FailedPrecondition(
                f"{kind} {handle!r} is in volume group {group!r}, but this instance is configured for "
                f"{self.group!r}; configure the group in which it was created"
            )
        return leaf


def first_member(leaf: str) -> str:
    """Return the leaf of the first member of the group that a snapshot with this leaf belongs to; "": to none."""
    member = MEMBER.fullmatch(leaf)
    return f"{member[1]}-0" if member else ""


def parse_handle(kind: str, handle: str) -> tuple[str, str, str]:
    """Return (node, group, leaf). Raises NotFound for a handle of another form, which no driver ever returned."""
    node, _, rest = handle.partition("/")
    group, _, leaf = rest.partition("/")
    if not (ids.NODE.fullmatch(node) and GROUP.fullmatch(group) and ids.LEAF_SHAPE.fullmatch(leaf)):
        raise NotFound(f"{kind} {handle!r} does not exist")
    return node, group, leaf


def device_name(group: str, volume: str) -> str:
    """Return the kernel's name for the device of a logical volume: dm/name."""
    return f"{group.replace('-', '--')}-{volume.replace('-', '--')}"


# Tags


def escape(text: str) -> str:
    return quote(text, safe=":").replace("~", "%7E").replace("%", "!")


def unescape(text: str) -> str:
    return unquote(text.replace("!", "%"))


def owner_tag(driver: str, cluster: str) -> str:
    """Return the tag of the logical volumes that belong to this driver and cluster."""
    return f"{OWNER}{escape(driver)}/{escape(cluster)}"


def informative_tag(key: str, text: str) -> str:
    """Return a tag for people, such as csi.pvc=default:data-0, cut to its maximum length."""
    shortened = escape(text)[:INFORMATIVE]
    return f"csi.{key}={shortened}"


def metadata_tags(metadata: Mapping[str, str]) -> Iterator[str]:
    """Return tags for people from a request's metadata: pvc/name becomes csi.meta.pvc-name."""
    for key, text in metadata.items():
        name = "".join(letter if letter.isalnum() else "-" for letter in key)
        if name.isascii() and text:
            yield informative_tag(f"meta.{name}"[:60], text)


def stamp_tags(stamp: Stamp) -> list[str]:
    """Return the tags that hold a stamp."""
    fields = [("name", stamp.name), ("digest", stamp.digest)]
    if stamp.source:
        fields.append(("source", f"{stamp.source.kind.value}:{stamp.source.handle}"))
    fields += [(f"c.{key}", value) for key, value in stamp.context.items()]
    text = urlencode(fields, quote_via=quote, safe="/:").replace("~", "%7E").replace("%", "!")
    parts = [text[start : start + STAMP_PART] for start in range(0, len(text), STAMP_PART)]
    numbered = (f"{STAMP}{number}={part}" for number, part in enumerate(parts))
    return [owner_tag(stamp.driver, stamp.cluster), *numbered]


def read_stamp(name: str, tags: Tags) -> Stamp:
    """Return the stamp from a logical volume's tags. Raises FailedPrecondition when it is damaged."""
    driver, _, cluster = value(tags, OWNER).partition("/")
    parts: list[str] = []
    while part := value(tags, f"{STAMP}{len(parts)}="):
        parts.append(part)
    fields = dict(parse_qsl("".join(parts).replace("!", "%").replace("+", "%2B"), keep_blank_values=True))
    if "name" not in fields:
        raise FailedPrecondition(
            f"the tag {STAMP}0 of logical volume {name} is missing; restore it with lvchange --addtag from a backup in "
            "/etc/lvm/archive"
        )
    kind, _, handle = fields.get("source", "").partition(":")
    if kind not in ("", *(one.value for one in SourceKind)):
        raise _damaged(name, f"{STAMP}0", f"{kind!r} is no kind of source")
    return Stamp(
        driver=unescape(driver),
        cluster=unescape(cluster),
        name=fields["name"],
        digest=fields.get("digest", ""),
        source=Source(kind=SourceKind(kind), handle=handle) if kind else None,
        context={key[2:]: text for key, text in fields.items() if key.startswith("c.")},
    )


def value(tags: Tags, prefix: str) -> str:
    """Return the rest of the tag with this prefix, "" when there is none. Of several, the largest."""
    return max((tag[len(prefix) :] for tag in tags if tag.startswith(prefix)), default="")


def byte_count(name: str, tags: Tags, prefix: str) -> int:
    """Return the number in the tag with this prefix, 0 when there is none. Raises FailedPrecondition.

    Of several, which an interrupted update leaves, the smallest.
    """
    texts = [tag[len(prefix) :] for tag in tags if tag.startswith(prefix)]
    if bad := [text for text in texts if not BYTES.fullmatch(text)]:
        raise _damaged(name, prefix, f"{bad[0]!r} is no number of bytes")
    return min(map(int, texts), default=0)


def created_at(name: str, tags: Tags) -> float:
    """Return the seconds since 1970 in the tag CREATED_AT, 0 without it. Raises FailedPrecondition."""
    text = value(tags, CREATED_AT)
    if with_prefix(tags, CREATED_AT) and not SECONDS.fullmatch(text):
        raise _damaged(name, CREATED_AT, f"{text!r} is no time")
    return float(text or 0)


def source_handle(name: str, tags: Tags) -> str:
    """Return the handle in the tag SOURCE_HANDLE of a snapshot. Raises FailedPrecondition."""
    handle = unescape(value(tags, SOURCE_HANDLE))
    try:
        parse_handle("volume", handle)
    except NotFound:
        raise _damaged(name, SOURCE_HANDLE, f"{handle!r} is no handle of a volume") from None
    return handle


def auto_extend(name: str, tags: Tags) -> tuple[int, int]:
    """Return (threshold, percent) in the tag AUTO_EXTEND, (0, 0) without it. Raises FailedPrecondition."""
    text = value(tags, AUTO_EXTEND)
    if with_prefix(tags, AUTO_EXTEND) and not EXTENSION.fullmatch(text):
        raise _damaged(name, AUTO_EXTEND, f"{text!r} is not <threshold>:<percent>")
    threshold, _, percent = text.partition(":")
    return int(threshold or 0), int(percent or 0)


def _damaged(name: str, tag: str, reason: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the tag {tag} of logical volume {name} is damaged: {reason}; correct it with lvchange --deltag and --addtag "
        "from a backup in /etc/lvm/archive"
    )


def with_prefix(tags: Tags, *prefixes: str) -> list[str]:
    """Return the tags that start with one of these prefixes."""
    return [tag for tag in tags if tag.startswith(prefixes)]


def add_options(tags: Iterable[str]) -> list[str]:
    """Return the options by which an lvm command adds these tags."""
    return [argument for tag in tags for argument in ("--addtag", tag)]
