"""Which blocks of a snapshot hold data, and which may differ from an older snapshot of the same volume.

A snapshot is an image of its own, a clone of its volume at a Ceph snapshot, which is in the trash namespace then. What
was written to the volume between two of these is in its object maps, also when the volume has been deleted: it is in
the trash while clones need it. A member of a group has, beside that, some data of its own, and that counts as changed.
All of it is of whole objects, and takes little memory: two bits for each.

A snapshot that was flattened has no Ceph snapshot any more, so its changes are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from heapq import merge

from csi_multi.contract import BlockMap, Extent, FailedPrecondition, OutOfRange

from . import object_maps
from .client import Client
from .errors import ObjectNotFound
from .group_members import MemberSnapshots
from .images import OwnedImages
from .object_maps import ImageRecord, RecordedSnapshot
from .resources import Image, Parent
from .side_by_side import both

AT_ONCE = 4  # commands
ATTEMPTS = 3  # a Ceph snapshot gets another name, or disappears from between the two, while its image is read
FULL = "make a full backup of the second one"

Range = tuple[int, int]  # the first byte, and the first one behind it


class BlockReader:
    """Every method acts through the client it is given."""

    def __init__(self, snapshots: OwnedImages, members: MemberSnapshots) -> None:
        self._snapshots = snapshots
        self._members = members

    def allocated(self, client: Client, leaf: str, offset: int) -> BlockMap:
        """Return the objects that hold data. Raises NotFound, OutOfRange."""
        image = self._image(client, leaf)
        start = _start(image, offset)
        rows = client.allocated(image.name)
        ranges = ((one.offset, one.offset + one.length) for one in rows if one.exists == "true")
        return _map(image, start, ranges)

    def changed(self, client: Client, base: str, target: str, offset: int) -> BlockMap:
        """Return the objects that may differ. Raises NotFound, OutOfRange, FailedPrecondition where that is not known.

        Everything is read before the answer begins.
        """
        names = self._snapshots.handle(base), self._snapshots.handle(target)
        for attempt in range(ATTEMPTS):
            before, image = both(lambda: self._image(client, base), lambda: self._image(client, target))
            start = _start(image, offset)
            old, new = before.parent, image.parent
            if old is None or new is None or old.id != new.id:
                raise unrelated(*names)
            try:
                return _map(image, start, merge(*_changes(client, (before, image), (old, new), start)))
            except ObjectNotFound as error:
                if attempt == ATTEMPTS - 1:
                    raise FailedPrecondition(
                        f"the changes from snapshot {names[0]!r} to {names[1]!r} are not known: {error}; {FULL}"
                    ) from None
        raise AssertionError("the last attempt returns or raises")

    def _image(self, client: Client, leaf: str) -> Image:
        found, label = self._snapshots.get(client, leaf)
        self._members.ensure_shown(client, leaf, label)
        return found.image


def unrelated(base: str, target: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"snapshots {base!r} and {target!r} are not of the same volume, or one of them was flattened: only changes "
        f"between two snapshots that share a volume's data are known; {FULL}"
    )


def _start(image: Image, offset: int) -> int:
    """Return the offset from which a map begins. Raises OutOfRange."""
    if offset > image.size:
        raise OutOfRange(f"offset {offset} is beyond the end of the snapshot at {image.size} bytes; start below that")
    return offset


def _changes(
    client: Client, images: tuple[Image, Image], volume: tuple[Parent, Parent], start: int
) -> list[Iterator[Range]]:
    """Return the changes of the volume between the Ceph snapshots that two snapshots were cloned from, and the data
    that each of the two has of its own.

    Raises FailedPrecondition, ObjectNotFound when something has changed while it was read.
    """
    record = object_maps.read_record(client, volume[0].id)
    between = _between(record, *(one.snapshot for one in volume))
    _refuse_untold(client, record, volume[1], between, images)
    reads = [partial(object_maps.read_map, client, one.id) for one in images]
    reads += [partial(object_maps.read_map, client, record.id, one.id) for one in between]
    recorded = [partial(copy_context().run, read) for read in reads]  # what is recorded belongs to the request
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rbd-maps") as threads:
        own, other, *maps = threads.map(lambda read: read(), recorded)
    written = object_maps.changed(maps)
    return [
        _ranges(written, record.object_size, record.stripe_count, start),
        *(
            _ranges(object_maps.existing(entries), one.object_size, one.stripe_count, start)
            for one, entries in zip(images, (own, other), strict=True)
        ),
    ]


def _between(record: ImageRecord, old: str, new: str) -> list[RecordedSnapshot]:
    """Return both snapshots and all between them. Raises ObjectNotFound when one has another name meanwhile."""
    ids = sorted(one.id for one in record.snapshots if one.name in (old, new))
    if len(ids) != len({old, new}):
        raise ObjectNotFound(f"image {record.id} has no snapshot {old} or {new}")
    return [one for one in record.snapshots if ids[0] <= one.id <= ids[-1]]


def _refuse_untold(
    client: Client,
    record: ImageRecord,
    volume: Parent,
    between: Iterable[RecordedSnapshot],
    snapshots: Iterable[Image],
) -> None:
    """Raise FailedPrecondition where the object maps do not tell what was written."""
    needed = object_maps.OBJECT_MAP | object_maps.FAST_DIFF
    invalid = object_maps.OBJECT_MAP_INVALID | object_maps.FAST_DIFF_INVALID
    if record.features & needed != needed:
        raise _untold(client.spec(volume.image), "lacks the features 'object-map' and 'fast-diff'")
    if marked := [one.name for one in between if one.flags & invalid]:
        raise _untold(client.spec(volume.image, marked[0]), "has an object map that is marked as invalid")
    for one in snapshots:
        if not {"object-map", "fast-diff"} <= one.features:
            raise _untold(client.spec(one.name), "lacks the features 'object-map' and 'fast-diff'")
        if one.flags:
            raise _untold(client.spec(one.name), "has an object map that is marked as invalid")


def _untold(spec: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"what changed between the snapshots is not known, because image {spec} {why}; {FULL}. Changes are known from "
        "snapshots on that are made of volumes with both features"
    )


def _ranges(entries: bytes, object_size: int, stripe_count: int, start: int) -> Iterator[Range]:
    """Yield the bytes of the objects that have an entry 1, in order. Where an image is striped, an object has bytes
    from all over its set of objects, so these are taken together.
    """
    count = stripe_count or 1
    size = object_size * count
    last = -1
    for number in object_maps.marked(entries, start // size * count):
        if number // count != last:
            last = number // count
            yield last * size, (last + 1) * size


def _map(image: Image, start: int, ranges: Iterable[Range]) -> BlockMap:
    return BlockMap(size=image.size, extents=_extents(ranges, start, image.size))


def _extents(ranges: Iterable[Range], start: int, size: int) -> Iterator[Extent]:
    """Join ranges that touch, which are in the order of their beginnings, and leave out what ends before `start`."""
    first = last = 0
    for begin, end in ranges:
        if end <= start or begin >= size:
            continue
        if begin > last or last == 0:
            if last:
                yield Extent(offset=first, length=last - first)
            first = begin
        last = max(last, min(end, size))
    if last:
        yield Extent(offset=first, length=last - first)
