"""What is written on a logical volume, as LVM tags: the stamp, and how far work on it has come.

A tag has up to 1024 bytes of [A-Za-z0-9_+.-/=!:#&] (lvm(8)). Text is written like a query string with
"!" for "%", so that a person can read it: csi.0=name=pvc-1&digest=ab12&source=snapshot:n1/vg0/s!C3!A4
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import parse_qsl, quote, unquote, urlencode

from csi_multi.contract import FailedPrecondition, Source, SourceKind, Stamp

OWNER = "csi.owner="  # driver and cluster
STAMP = "csi."  # followed by a digit: the stamp in pieces
PIECE = 1000  # bytes
PEOPLE = 200  # bytes of a tag that only people read

NEW = "csi.new"  # a thick volume whose space holds what was there before, signatures included
FRESH = "csi.fresh"  # never formatted, never written by a user; signatures are gone
FORMATTING = "csi.formatting"  # mkfs began on it
DIRTY = "csi.dirty"  # a thick volume that can show old data where nobody wrote since
UNWIPED = "csi.unwiped"  # a thick volume that nobody wants to be wiped
ZERO = "csi.zero"  # to be zeroed even where a filesystem would hide old data
READING = "csi.reading"  # activated only because a snapshot of it is being read

ZEROED = "csi.zeroed="  # bytes zeroed so far
TODO = "csi.todo="  # bytes that an unfinished volume is to have
COPIED = "csi.copied="  # bytes copied so far
SIZE = "csi.size="  # bytes of a snapshot's source when it was cut
SOURCE = "csi.source="  # handle of a snapshot's source
AT = "csi.at="  # seconds since 1970, with a fraction
EXTEND = "csi.extend="  # <threshold>:<percent> of a thick snapshot
LAYOUT = "csi.layout="  # of a thick volume: <data>:<copies>:<parity>:<stripe size>
THICK = "csi.thick"  # on a snapshot that LVM has to show as a thick one, else it was cut off in the making
INVALID = "csi.invalid"  # a thick snapshot that was seen to have overflowed

IMPORTED = "csi.imported"  # it was there before the driver, which never deletes it
WAS = "csi.was="  # the name that it had then

Tags = Collection[str]


def escaped(text: str) -> str:
    return quote(text, safe=":").replace("~", "%7E").replace("%", "!")


def plain(text: str) -> str:
    return unquote(text.replace("!", "%"))


def owner(driver: str, cluster: str) -> str:
    """Return the tag that says whose a logical volume is."""
    return f"{OWNER}{escaped(driver)}/{escaped(cluster)}"


def for_people(key: str, text: str) -> str:
    """Return a tag such as csi.pvc=default:data-0, as much of it as has room."""
    cut = escaped(text)[:PEOPLE]
    return f"csi.{key}={cut}"


def of_stamp(stamp: Stamp) -> list[str]:
    """Return the tags that hold the stamp."""
    fields = [("name", stamp.name), ("digest", stamp.digest)]
    if stamp.source:
        fields.append(("source", f"{stamp.source.kind.value}:{stamp.source.handle}"))
    fields += [(f"c.{key}", value) for key, value in stamp.context.items()]
    text = urlencode(fields, quote_via=quote, safe="/:").replace("~", "%7E").replace("%", "!")
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    whose = owner(stamp.driver, stamp.cluster)
    return [whose, *(f"{STAMP}{number}={piece}" for number, piece in enumerate(pieces))]


def stamp(name: str, tags: Tags) -> Stamp:
    """Return the stamp that a logical volume of ours carries. Raises FailedPrecondition when it is damaged."""
    driver, _, cluster = value(tags, OWNER).partition("/")
    pieces: list[str] = []
    while piece := value(tags, f"{STAMP}{len(pieces)}="):
        pieces.append(piece)
    fields = dict(parse_qsl("".join(pieces).replace("!", "%").replace("+", "%2B"), keep_blank_values=True))
    if "name" not in fields:
        raise FailedPrecondition(
            f"logical volume {name} has lost its tag {STAMP}0; restore it with lvchange --addtag from a backup in "
            "/etc/lvm/archive"
        )
    kind, _, handle = fields.get("source", "").partition(":")
    return Stamp(
        driver=plain(driver),
        cluster=plain(cluster),
        name=fields["name"],
        digest=fields.get("digest", ""),
        source=Source(kind=SourceKind(kind), handle=handle) if kind else None,
        context={key[2:]: text for key, text in fields.items() if key.startswith("c.")},
    )


def value(tags: Tags, prefix: str) -> str:
    """Return what follows the prefix in the tag that has it, "" when none has. Of several, the largest."""
    return max((tag[len(prefix) :] for tag in tags if tag.startswith(prefix)), default="")


def number(tags: Tags, prefix: str) -> int:
    """Return a count of bytes; of several, the smallest, for a note that was cut off; 0: none."""
    found = [int(tag[len(prefix) :]) for tag in tags if tag.startswith(prefix)]
    return min(found, default=0)


def having(tags: Tags, *prefixes: str) -> list[str]:
    """Return the tags that start with one of these."""
    return [tag for tag in tags if tag.startswith(prefixes)]


def words(tags: Iterable[str]) -> list[str]:
    """Return the words that give a command these tags."""
    return [word for tag in tags for word in ("--addtag", tag)]
