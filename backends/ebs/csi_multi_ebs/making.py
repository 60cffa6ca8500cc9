"""How volumes are made: in which zone, with which token, and what an answer of EC2 is worth.

EC2 knows a repeated creation by its client token, so nothing is looked up before: one CreateVolume, and
polls that all creations share. A token belongs to a name. It is burnt when its volume failed or was
deleted; then the next one in a fixed row is tried, so that any process finds the same.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    StorageError,
    Timeout,
    Unauthenticated,
    Unavailable,
    VolumeRequest,
    leaf,
    missing,
)

from . import tags, types, wishes
from .account import GIB, GOING, Account
from .config import Parameters
from .doubts import Doubts
from .ec2_errors import Quota, TokenMismatch, WrongState, ZoneFull
from .rows import SnapshotRow, VolumeRow

ATTEMPTS = 20  # tokens per name
REMEMBERED = 1000  # deleted volumes
Make = Callable[[str], VolumeRow]  # with a token


class Making:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._doubts = Doubts(account.config.consistency_seconds)  # names that may have a volume
        self._guard = threading.Lock()
        self.gone: dict[str, None] = {}  # ids deleted by this process, oldest first: their tokens are burnt

    def create(self, request: VolumeRequest) -> VolumeRow:
        """Make an empty volume. Raises what Backend.create_volume says."""
        return self._anywhere(request, None)

    def restore(self, request: VolumeRequest) -> VolumeRow:
        """Make a volume with the data of a snapshot."""
        assert request.source
        row = self._account.snapshot(request.source.handle)
        if row.state == "error":
            raise FailedPrecondition(
                f"snapshot {row.id!r} has failed ({row.message or 'no reason given'}): cut another"
            )
        if row.state != "completed":
            raise Busy(f"snapshot {row.id!r} is {row.state}: EC2 makes volumes of completed ones; try again")
        return self._anywhere(request, row)

    def clone(self, request: VolumeRequest) -> VolumeRow:
        """Make a copy of a volume in its zone."""
        assert request.source
        source = self._account.volume(request.source.handle)
        size = wishes.wide_enough(request.size, source.size)
        wanted = types.spec(
            request.parameters or Parameters(), request.mutable, size, least=source.size, default=source.size
        )
        if source.zone not in wishes.zones(self._account, request):
            raise ResourceExhausted(
                f"EC2 copies volumes within their zone: {source.id!r} is in {source.zone!r}, which is not asked for"
            )
        labels = tags.of_volume(request, self._account.setting, self._account.config)
        encrypted, key = wishes.encryption(self._account.config, request.parameters or Parameters())
        return self._made(
            request,
            source.zone,
            lambda token: self._account.ec2.copy_volume(
                source=source.id,
                spec=wanted,
                token=token,
                tags=labels,
                encrypted=encrypted,
                kms_key=key,
                multi_attach=wishes.many_nodes(request),
            ),
            set(),
        )

    def _anywhere(self, request: VolumeRequest, snapshot: SnapshotRow | None) -> VolumeRow:
        """Try the zones in the order wanted, until one has room."""
        account, parameters = self._account, request.parameters or Parameters()
        least = snapshot.size if snapshot else 1
        default = snapshot.size if snapshot else -(-account.config.default_size // GIB)
        size = wishes.wide_enough(request.size, least)
        wanted = types.spec(parameters, request.mutable, size, least=least, default=default)
        labels = tags.of_volume(request, account.setting, account.config)
        encrypted, key = wishes.encryption(self._account.config, parameters)
        full: list[str] = []
        spent: set[str] = set()
        zones = wishes.zones(self._account, request)
        if (doubtful := self._doubts.where(request.name)) in zones:
            zones = zones[zones.index(doubtful) :]  # one before it may have room again: there would be two volumes
        for zone in zones:

            def make(token: str, zone: str = zone) -> VolumeRow:
                return account.ec2.create_volume(
                    spec=wanted,
                    zone=zone,
                    token=token,
                    tags=labels,
                    snapshot=snapshot.id if snapshot else "",
                    encrypted=encrypted,
                    kms_key=key,
                    multi_attach=wishes.many_nodes(request),
                    rate=parameters.volume_initialization_rate if snapshot else None,
                )

            try:
                return self._made(request, zone, make, spent)
            except ZoneFull as error:
                full.append(str(error))
        raise ResourceExhausted("; ".join(full) or "no zone that is asked for is one of this instance's region")

    def _made(self, request: VolumeRequest, zone: str, make: Make, spent: set[str]) -> VolumeRow:
        """Return the volume when it is usable. Raises AlreadyExists when the name was asked for otherwise.

        `spent` are tokens that zones without room may have kept: what EC2 says of them tells of no volume.
        """
        ends = self._account.ends(request.deadline)
        for number, token in enumerate(_tokens(self._account.owner, request.name)):
            if number == ATTEMPTS:
                self._refuse_if_found(request.name)  # tokens of hours do not find each other's volumes
            try:
                answer = make(token)
            except TokenMismatch:
                self._refuse_if_found(request.name, sure=token in spent)
                continue  # the name has no volume: the token's one is gone
            except ZoneFull:
                spent.add(token)
                raise
            except Quota:  # EC2 says so also of a creation that it has done already
                self._refuse_if_found(request.name)
                raise
            except (Unavailable, Timeout):
                self._doubts.begin(request.name, zone)
                raise
            self._doubts.begin(request.name, zone)
            try:
                row = self._usable(request.name, answer, ends)
            except (AlreadyExists, Busy, Timeout, Unavailable):
                raise
            except StorageError as error:  # final, but the volume is there
                raise Unavailable(f"volume {answer.id!r} was made, but EC2 refuses the next call: {error}") from error
            self._doubts.end(request.name)
            if row:
                self._account.saw(row)
                return row
        raise Unavailable(f"no volume could be made for {request.name!r} in {ATTEMPTS} attempts this hour")

    def _refuse_if_found(self, name: str, *, sure: bool = False) -> None:
        """Raise AlreadyExists when a volume has this name, Unavailable while EC2 may just not show it yet.

        `sure`: what EC2 said is no reason to think that there is one.
        """
        if self.named(name):
            self._doubts.end(name)
            raise AlreadyExists(f"volume {name!r} exists")
        if name not in self._doubts and not sure:
            self._doubts.begin(name)
        self._refuse_in_doubt(name)

    def _refuse_in_doubt(self, name: str) -> None:
        if self._doubts.lasts(name):
            raise Unavailable(
                f"volume {name!r}: what EC2 answered may mean that it was made a moment ago, and EC2 does not show it "
                "yet; try again"
            )
        self._doubts.end(name)

    def find(self, name: str) -> VolumeRow:
        """Return our volume of this requested name. Raises NotFound when it is sure that there is none.

        Raises Busy while it is in the making: it may still fail.
        """
        try:
            row = self.named(name)
        except (PermissionDenied, Unauthenticated) as error:
            raise Unavailable(f"volume {name!r}: whether it was made cannot be known: {error}") from error
        if row is None:
            self._refuse_in_doubt(name)
            raise missing("volume", name)
        if row.state == "creating":
            raise Busy(f"volume {name!r} is in the making as {row.id!r}; try again")
        return row

    def named(self, name: str) -> VolumeRow | None:
        """Return our volume of this requested name, the oldest if there are several."""
        found = self._account.names.get(leaf(name), self._account.ends(None)) or []
        return next(iter(self._alive(found)), None)

    def _alive(self, found: list[VolumeRow]) -> list[VolumeRow]:
        """Leave out what is as good as gone, also what EC2 goes on showing as if it were not."""
        return [row for row in found if row.state not in (*GOING, "error") and row.id not in self.gone]

    def _usable(self, name: str, answer: VolumeRow, ends: float) -> VolumeRow | None:
        """Wait until the volume can be attached; None when it never will: its token is burnt."""
        if answer.id in self.gone:
            return None
        row = self._first_look(name, answer, ends)
        if row is None or row.state == "creating" or not self._ours(row):
            row = self._settled(answer, ends)
        if row is None or row.state in GOING:
            return None
        if row.state == "error":
            with suppress(NotFound):
                self.delete(row)
            raise Unavailable(
                f"EC2 could not make volume {row.id!r} (state error; often a KMS key that may not be used); "
                "it was deleted; try again"
            )
        return row

    def _first_look(self, name: str, answer: VolumeRow, ends: float) -> VolumeRow | None:
        """Return the volume as EC2 shows it, once it is made if it shows it. Raises AlreadyExists for a second one.

        Tokens do not exclude that: one process may copy a volume while another makes an empty one. The later
        of the two is deleted by who made it; one that was made long ago may be in use, and stays.
        """

        def done(rows: list[VolumeRow] | None) -> bool:
            return [(row.id, row.state) for row in rows or ()] != [(answer.id, "creating")]

        try:
            found = self._account.made.wait(leaf(name), done, ends) or []
        except Timeout as error:
            raise Unavailable(f"volume {answer.id!r} is in the making: {error}") from error
        there = self._alive(found)
        if there and there[0].id != answer.id and (there[0].created, there[0].id) < (answer.created, answer.id):
            if answer.state == "creating":
                with suppress(NotFound):
                    self.delete(answer)
            raise AlreadyExists(f"volume {name!r} exists as {there[0].id!r}")
        return next((row for row in found if row.id == answer.id), None)

    def _settled(self, answer: VolumeRow, ends: float) -> VolumeRow | None:
        """Return the volume when it is no longer in the making; None when EC2 does not know it any more.

        Tags may show later than the volume: without them it is as if not shown yet.
        """
        young = self._account.config.consistency_seconds - (datetime.now(UTC) - answer.created).total_seconds()
        unseen = time.monotonic() + young  # until when EC2 may just not show it yet

        def done(row: VolumeRow | None) -> bool:
            if row is None or not self._ours(row):
                return time.monotonic() > unseen
            return row.state != "creating"

        try:
            return self._account.watch.wait(answer.id, done, ends)
        except Timeout as error:
            raise Unavailable(f"volume {answer.id!r} is still in the making: {error}") from error

    def _ours(self, row: VolumeRow) -> bool:
        return tags.stamp(row.tags) is not None and tags.ours(row.tags, self._account.setting)

    def delete(self, row: VolumeRow) -> None:
        """Delete a volume of ours. Raises NotFound, InUse."""
        self._account.free.take(row.id)
        try:
            self._account.ec2.delete_volume(row.id)
        except WrongState as error:
            raise Unavailable(f"volume {row.id!r} is {row.state} and cannot be deleted now: {error}") from error
        with self._guard:
            self.gone[row.id] = None
            while len(self.gone) > REMEMBERED:
                del self.gone[next(iter(self.gone))]


def _tokens(owner: str, name: str) -> Iterator[str]:
    """Yield the client tokens of a name, the same ones in the same order for every process.

    When the cause of many failures was mended at last, this hour's token is there for the next attempt.
    """
    for attempt in (*range(ATTEMPTS), f"hour {int(time.time() // 3600)}"):
        yield hashlib.sha256(f"{owner}\n{name}\n{attempt}".encode()).hexdigest()
