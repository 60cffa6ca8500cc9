"""Describes as EC2 answers them: in pages, with errors for unknown ids, and with delays."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .fake_ec2_calls import Answer, Call, Refusal, answer
from .fake_ec2_clock import NOW, Clock, Wait
from .fake_ec2_moto import shown_time, store

LARGEST_PAGE = 1000
SMALLEST_PAGE = 5
MOST_IDS = 500
MOST_VALUES = 200  # of all filters together


def volume_fields(each: Any) -> dict[str, object]:
    return {
        "volumeId": each.id,
        "size": each.size,
        "volumeType": each.volume_type,
        "availabilityZone": each.availability_zone,
        "createTime": shown_time(each.create_time),
        **attachment_fields(each),
        "encrypted": _bool(each.encrypted),
        **_given("kmsKeyId", each.kms_key_id),
        **_given("iops", each.iops),
        **_given("throughput", each.throughput),
        **_given("snapshotId", each.snapshot_id),
        **_given("outpostArn", each.outpost_arn),
        **_given("sourceVolumeId", each.source_volume_id),
        **_given("volumeInitializationRate", each.volume_initialization_rate),
        **({} if each.multi_attach_enabled is None else {"multiAttachEnabled": _bool(each.multi_attach_enabled)}),
        **_given("tagSet", each.get_tags()),
    }


def attachment_fields(each: Any) -> dict[str, object]:
    """What changes of a volume when it is attached or detached."""
    return {"status": each.status, "attachmentSet": [_attachment(attachment) for attachment in each.attachments]}


def snapshot_fields(each: Any) -> dict[str, object]:
    return {
        "snapshotId": each.id,
        "volumeId": each.volume_id,
        "volumeSize": each.volume_size,
        "status": each.status,
        "progress": each.progress,
        "startTime": shown_time(each.start_time),
        "ownerId": each.owner_id,
        "encrypted": _bool(each.encrypted),
        "storageTier": each.storage_tier,
        "tagSet": each.get_tags(),
        **_given("description", each.description),
        **_given("outpostArn", each.outpost_arn),
        **_given("kmsKeyId", each.kms_key_id),
    }


def _attachment(each: Any) -> dict[str, object]:
    return {
        "volumeId": each.volume_id,
        "instanceId": each.instance_id,
        "device": each.device,
        "status": each.status,
        "attachTime": shown_time(each.attach_time),
    }


def _given(name: str, value: object) -> dict[str, object]:
    return {name: value} if value else {}


def _bool(value: object) -> str:
    return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Kind:
    """What volumes and snapshots have in common, with EC2's words for each."""

    action: str
    held: str  # moto's attribute
    id: str  # the parameter
    set: str  # the element
    missing: str  # the error code
    noun: str
    shown: Callable[[Any], dict[str, object]]


VOLUMES = Kind("DescribeVolumes", "volumes", "VolumeId", "volumeSet", "InvalidVolume.NotFound", "volume", volume_fields)
SNAPSHOTS = Kind(
    "DescribeSnapshots",
    "snapshots",
    "SnapshotId",
    "snapshotSet",
    "InvalidSnapshot.NotFound",
    "snapshot",
    snapshot_fields,
)


class Describes:
    """The resources that describes show, and the tokens of their pages."""

    def __init__(self, clock: Clock) -> None:
        self.empty_pages = 0  # so many pages from now on hold nothing but a token, as EC2's may
        self.leaves_out: Callable[[str], bool] = lambda _id: False  # whether this look does not show a resource
        self._clock = clock
        self._hidden: set[str] = set()
        self._deleted: dict[str, tuple[Any, Any]] = {}  # id -> where it was, what it was
        self._before: dict[str, dict[str, object]] = {}  # volume -> how its attachments were
        self._tags: dict[str, Any] = {}  # volume -> how its tags were
        self._tokens: dict[str, tuple[str, str]] = {}  # token -> what was asked, the last id

    def hide(self, id: str, kind: Kind, wait: Wait) -> None:
        """Hide a resource from describes for a while."""
        if wait != NOW:
            self._hidden.add(id)
            self._clock.after(wait, kind.action, lambda: self._hidden.discard(id))

    def show_deleted(self, place: Any, gone: Any, kind: Kind, wait: Wait) -> None:
        """Show a deleted resource in describes for a while."""
        if wait != NOW:
            self._deleted[gone.id] = (place, gone)
            self._clock.after(wait, kind.action, lambda: self._deleted.pop(gone.id, None))

    def delay(self, volume: Any, wait: Wait) -> None:
        """Show a volume's present attachments in describes for a while, whatever changes."""
        if wait != NOW:
            self._before.setdefault(volume.id, attachment_fields(volume))
            self._clock.after(wait, VOLUMES.action, lambda: self._before.pop(volume.id, None))

    def delay_tags(self, volume: Any, wait: Wait) -> None:
        """Show a volume's present tags in describes for a while, whatever changes; filters go by the new ones."""
        self._tags[volume.id] = volume.get_tags()
        self._clock.after(wait, VOLUMES.action, lambda: self._tags.pop(volume.id, None))

    def describe(self, call: Call, kind: Kind) -> Answer:
        self._clock.looked(kind.action)
        ids = call.many(kind.id)
        values = sum(len(each) for each in call.filters().values())
        if values > MOST_VALUES:
            raise Refusal("FilterLimitExceeded", f"The maximum number of filter values is {MOST_VALUES}.")
        if len(ids) > MOST_IDS:
            raise Refusal("InvalidParameterValue", f"The maximum number of {kind.noun} ids is {MOST_IDS}.")
        if ids and "MaxResults" in call.params:
            text = f"The parameter {kind.id} cannot be used with the parameter maxResults"
            raise Refusal("InvalidParameterCombination", text)
        with self._as_seen(call, kind) as seen:
            if missing := [id for id in ids if id not in seen]:
                raise Refusal(kind.missing, absent(kind, missing))
            found = getattr(store(call), kind.action.replace("Describe", "describe_").lower())(ids, call.filters())
            if "MaxResults" in call.params or "NextToken" in call.params:
                return self._page(call, kind, found)
            return answer(kind.action, {kind.set: [self._shown(kind, each) for each in found]})

    def _shown(self, kind: Kind, each: Any) -> dict[str, object]:
        return {
            **kind.shown(each),
            **self._before.get(each.id, {}),
            **_given("tagSet", self._tags.get(each.id)),
        }

    @contextlib.contextmanager
    def _as_seen(self, call: Call, kind: Kind) -> Iterator[dict[str, Any]]:
        """Make moto hold only the resources that describes show."""
        place = store(call)
        true = getattr(place, kind.held)
        deleted = {
            id: gone for id, (where, gone) in self._deleted.items() if where is place and id[:3] == kind.noun[:3]
        }
        seen = {id: each for id, each in true.items() if id not in self._hidden and not self.leaves_out(id)}
        seen |= deleted
        for gone in deleted.values():
            gone.phase = "deleting"
        setattr(place, kind.held, seen)
        try:
            yield seen
        finally:
            setattr(place, kind.held, true)

    def _page(self, call: Call, kind: Kind, found: list[Any]) -> Answer:
        size = _page_size(call)
        asked = f"{kind.noun} {call.account} {call.region} {sorted(call.filters().items())}"
        last = self._last(call.get("NextToken"), asked)
        rest = sorted((each for each in found if each.id > last), key=lambda each: each.id)
        if self.empty_pages:
            self.empty_pages -= 1
            return answer(kind.action, {kind.set: [], "nextToken": self._token(asked, last)})
        page = rest[:size]
        token = {"nextToken": self._token(asked, page[-1].id)} if page != rest else {}
        return answer(kind.action, {kind.set: [self._shown(kind, each) for each in page], **token})

    def _token(self, asked: str, last: str) -> str:
        token = secrets.token_urlsafe(225)  # 300 characters
        self._tokens[token] = (asked, last)
        return token

    def _last(self, token: str, asked: str) -> str:
        if not token:
            return ""
        of, last = self._tokens.get(token, ("", ""))
        if of != asked:
            raise Refusal("InvalidParameterValue", f"Value ( {token} ) for parameter nextToken is invalid.")
        return last


def absent(kind: Kind, ids: list[str]) -> str:
    """Return EC2's message for ids that do not exist."""
    if len(ids) == 1:
        return f"The {kind.noun} '{ids[0]}' does not exist."
    return f"The {kind.noun}s '{', '.join(ids)}' do not exist."


def _page_size(call: Call) -> int:
    size = int(call.get("MaxResults", str(LARGEST_PAGE)))
    if size < SMALLEST_PAGE:
        text = f"Value ( {size} ) for parameter maxResults is invalid. Expecting a value greater than {SMALLEST_PAGE}."
        raise Refusal("InvalidParameterValue", text)
    return min(size, LARGEST_PAGE)
