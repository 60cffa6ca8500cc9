"""The import of storage that was created by hand, and its release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from csi_multi.contract import IMPORTED, Attach, FailedPrecondition, NotFound, Stamp, StorageError, Volume

from ..assertions import expect, same
from ..context import BLOCK_SIZE, CheckContext, pattern
from .base import Operation, attempt, describe_error, retry

DATA = "kit by hand"


class Imports:
    """What a check imports, by the names that it requested: an imported volume is released, it cannot be deleted."""

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self._names: list[str] = []

    def stamp(self, name: str = "") -> Stamp:
        """Return the stamp that `csi-multi import` gives a volume; what is imported with it is released at the end."""
        setting = self.t.backend.setting
        self._names.append(name or self.t.name("import"))
        return Stamp(
            driver=setting.driver,
            cluster=setting.cluster,
            name=self._names[-1],
            digest=IMPORTED,
            context={"fsType": "ext4"},
        )

    def volume(self, native: str = "", stamp: Stamp | None = None) -> Volume:
        """Import what has this name, "" for something new, as a volume with this stamp, None for a new one."""
        made: Volume = self.t.backend.import_volume(native or by_hand(self.t), stamp or self.stamp())
        return made

    def release(self, name: str) -> None:
        """Release the volume with this requested name, if it is an imported one."""
        try:
            found: Volume = self.t.backend.find_volume(name)
        except NotFound:
            return
        if not found.stamp.imported:
            return
        with suppress(StorageError):  # while it is in use the release is refused, which says so
            self.t.backend.close_device(found.handle)
            if Attach in self.t.features:
                self.t.client.detach(found.handle, None)
        self.t.backend.release_volume(found.handle)
        self.t.forget(found)

    def release_all(self) -> None:
        for name in self._names:
            retry(partial(self.release, name), f"the release of imported volume {name!r}")

    def release_what_can_be(self) -> None:
        """Release all that the storage lets go, after the process may have died."""
        with suppress(StorageError):
            self.t.in_process.restart()
        for name in self._names:
            with suppress(Exception):  # the failure of the check is more important than one of the clean-up
                self.release(name)


@contextmanager
def imports(t: CheckContext) -> Iterator[Imports]:
    """Import things for the block; all of them are released at its end, however it ends."""
    made = Imports(t)
    try:
        yield made
    except BaseException:
        made.release_what_can_be()
        raise
    made.release_all()


def by_hand(t: CheckContext) -> str:
    """Create something that can be imported, with known data at its head; return its name in the storage."""
    names: list[str] = []
    create: Callable[[bytes], str] | None = t.storage.importable
    assert create
    t.create_foreign(lambda: names.append(create(pattern(DATA))))
    return names[0]


def expect_data(t: CheckContext, volume: Volume, what: str) -> None:
    if not t.no_data_reason():
        found = t.read(volume, BLOCK_SIZE)
        expect(found == pattern(DATA), f"{what}: the first block differs from what was there before the import")


class ImportVolume(Operation):
    method = "import_volume"

    def __init__(self, made: Imports) -> None:
        super().__init__(made.t)
        self.made = made

    def prepare(self) -> None:
        self.native, self.stamp = by_hand(self.t), self.made.stamp()
        self.before = self.t.resources()

    def act(self) -> Volume:
        return self.made.volume(self.native, self.stamp)

    def verify(self, answer: Volume, what: str) -> None:
        same(answer.stamp, self.stamp, f"{what}: the stamp")
        for read, key in (("get_volume", answer.handle), ("find_volume", self.stamp.name)):
            found, error = attempt(partial(getattr(self.t.backend, read), key))
            expect(error is None, f"{what}: {read} raised {error!r}")
            same(found, answer, f"{what}: {read}")
        expect_data(self.t, answer, what)

    def is_unchanged(self) -> bool:
        return self.t.resources() == self.before

    def remove(self) -> None:
        self.t.backend.release_volume(self.t.backend.find_volume(self.stamp.name).handle)


class ReleaseVolume(Operation):
    method = "release_volume"

    def __init__(self, made: Imports) -> None:
        super().__init__(made.t)
        self.made = made

    def prepare(self) -> None:
        native = by_hand(self.t)
        self.before = self.t.resources()
        self.volume = self.made.volume(native)

    def act(self) -> None:
        """Release it. A repeated release may find that the first one was complete, and what is foreign now."""
        with suppress(NotFound, FailedPrecondition):
            self.t.backend.release_volume(self.volume.handle)

    def verify(self, answer: None, what: str) -> None:
        found, error = attempt(partial(self.t.client.get, self.volume.handle))
        outcome = f"found {found!r}" if error is None else f"raised {describe_error(error)}"
        gone = isinstance(error, NotFound | FailedPrecondition)
        expect(gone, f"{what}: get_volume: {outcome}, the contract requires NotFound or FailedPrecondition")

    def is_unchanged(self) -> bool:
        return attempt(partial(self.t.client.get, self.volume.handle))[1] is None

    def remove(self) -> None:
        self.act()
