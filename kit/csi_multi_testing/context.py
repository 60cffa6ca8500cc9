"""The context of one check: short ways to create resources, unique names, and the clean-up at the end."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, cast

from csi_multi.contract import (
    FEATURES,
    TOOLS,
    Backend,
    Capability,
    GroupSnapshot,
    ListSnapshots,
    ListVolumes,
    Node,
    SizeRange,
    Snapshot,
    Source,
    SourceKind,
    StorageError,
    Topology,
    Volume,
)
from csi_multi.contract.errors import NOT_FINAL

from .assertions import CheckFailed, expect
from .fault_injection import FaultInjector, ProcessDied
from .in_process import InProcessClient
from .protocol import BLOCK, BackendProtocol, Target, VolumeSpec
from .secret_watch import marked, watch_of
from .storage import Storage
from .volume_bytes import BLOCK_SIZE, VolumeBytes, pattern
from .waiting import make_all

__all__ = ["BLOCK_SIZE", "CheckContext", "features_of", "in_process", "pages", "pattern", "source"]


def features_of(backend: type[Backend]) -> frozenset[type[Backend]]:
    """Return the feature classes that a backend declares, those for the command line included."""
    return frozenset(one for one in (*FEATURES, *TOOLS) if issubclass(backend, one))


class CheckContext(VolumeBytes):
    """A `with` block: its end removes what the check created, and raises CheckFailed if anything remains."""

    def __init__(
        self,
        storage: Storage,
        client: BackendProtocol,
        features: Collection[type[Backend]],
        injector: FaultInjector,
        run: str = "",
    ) -> None:
        """`run` is a part of all names and must be unique for each check."""
        self.storage = storage
        self.client = client
        self.features = features
        self.injector = injector
        self.notes: list[str] = []
        self.prefix = ""  # with which all new names begin
        self._names = itertools.count(1)
        self._run = run or uuid.uuid4().hex[:8]
        self._volumes: dict[str, None] = {}
        self._snapshots: dict[str, None] = {}
        self._groups: dict[str, None] = {}
        self._attached: dict[str, None] = {}
        self._open: dict[str, None] = {}
        self._before: set[str] = set()
        self._calls = ExitStack()
        self._watch = watch_of(storage)

    @property
    def in_process(self) -> InProcessClient:
        """The in-process client, for checks with `Target.BACKEND`."""
        return cast(InProcessClient, self.client)

    @property
    def backend(self) -> Any:
        """The backend object, for checks with `Target.BACKEND`."""
        return self.in_process.backend

    @property
    def size(self) -> int:
        return self.storage.size

    def name(self, text: str = "kit") -> str:
        """Return a name for something new, at most 128 bytes when `text` is short."""
        return f"{self.prefix}{text}-{self._run}-{next(self._names)}"

    def note(self, text: str) -> None:
        """Add a measured fact to the report."""
        self.notes.append(text)

    # Creating

    def spec(
        self,
        name: str = "",
        size: int | None = None,
        *,
        limit: int = 0,
        capability: Capability | None = None,
        **more: Any,
    ) -> VolumeSpec:
        """Return a request for a volume; `size` None stands for Storage.size."""
        wanted = SizeRange(required=self.size if size is None else size, limit=limit)
        used = (capability or self.storage.capability or BLOCK,)
        more = {"parameters": self.storage.parameters, "mutable": self.storage.mutable, "capabilities": used, **more}
        return VolumeSpec(name=name or self.name(), size=wanted, **more)

    def create(self, spec: VolumeSpec) -> Volume:
        """Create a volume, to be removed at the end."""
        volume = self.client.create(spec)
        self._volumes[volume.handle] = None
        return volume

    def volume(self, name: str = "", size: int | None = None, **more: Any) -> Volume:
        return self.create(self.spec(name, size, **more))

    def copy(self, of: Volume | Snapshot, name: str = "", size: int | None = 0, **more: Any) -> Volume:
        """Create a volume from a snapshot or another volume; size 0 leaves the size to the backend."""
        return self.create(self.spec(name, size, source=source(of), **more))

    def snapshot(self, of: Volume, name: str = "") -> Snapshot:
        snapshot = self.client.snapshot(name or self.name("snapshot"), of.handle)
        self._snapshots[snapshot.handle] = None
        return snapshot

    def group(self, of: Collection[Volume], name: str = "") -> GroupSnapshot:
        handles = [one.handle for one in of]
        with self.storage.together(handles) if self.storage.together else nullcontext():
            group = self.client.group(name or self.name("group"), handles)
        self._groups[group.handle] = None
        return group

    def attach(self, volume: Volume, node: Node, **more: Any) -> Any:
        context = self.client.attach(volume.handle, node, **more)
        self._attached[volume.handle] = None
        return context

    def detach(self, volume: Volume) -> None:
        """Detach a volume that the check has attached, before it is deleted."""
        if volume.handle in self._attached:
            self.client.detach(volume.handle, None)
            self._attached.pop(volume.handle)

    def register(self, *resources: Volume | Snapshot | GroupSnapshot) -> None:
        """Register what was created by other means, to be removed at the end."""
        for resource in resources:
            self._registered(resource)[resource.handle] = None

    def _registered(self, resource: Volume | Snapshot | GroupSnapshot) -> dict[str, None]:
        return {Volume: self._volumes, Snapshot: self._snapshots, GroupSnapshot: self._groups}[type(resource)]

    def forget(self, *resources: Volume | Snapshot | GroupSnapshot) -> None:
        """Leave out of the clean-up what the check itself has deleted: some checks create hundreds of volumes."""
        for resource in resources:
            self._registered(resource).pop(resource.handle, None)
            if isinstance(resource, Volume):
                self._attached.pop(resource.handle, None)
                self._open.pop(resource.handle, None)

    def delete(self, *resources: Volume | Snapshot | GroupSnapshot) -> None:
        """Delete what the check created, and leave it out of the clean-up."""
        for resource in resources:
            client = self.client
            remove = {Volume: client.delete, Snapshot: client.delete_snapshot, GroupSnapshot: client.delete_group}
            remove[type(resource)](resource.handle)
            self.forget(resource)

    def close_at_end(self, volume: Volume) -> None:
        """Close the volume's device at the end. Call it before a check with `Target.BACKEND` opens the device."""
        self._open[volume.handle] = None

    @contextmanager
    def refused(self, *kinds: type[StorageError], what: str) -> Iterator[None]:
        """Require that the block raises one of these classes; `what` describes the request."""
        wanted = tuple(self.client.kind_of(kind) for kind in kinds)
        names = " or ".join(kind.__name__ for kind in kinds)
        try:
            yield
        except wanted as error:
            expect(str(error).strip(), f"{what}: {type(error).__name__} has no text, and people see nothing else of it")
            return
        except StorageError as error:
            raise CheckFailed(
                f"{what}: raised {type(error).__name__} ({error}), the contract requires {names}"
            ) from error
        raise CheckFailed(f"{what}: succeeded, the contract requires {names}")

    # What is on the storage

    def resources(self) -> set[str]:
        """Return everything on the storage, as far as Storage.resources or the listings show it."""
        if self.storage.resources:
            return set(self.storage.resources())
        found: set[str] = set()
        if ListVolumes in self.features:
            found |= {f"volume {one.handle}" for one in pages(self.client.list_volumes)}
        if ListSnapshots in self.features:
            found |= {f"snapshot {one.handle}" for one in pages(self.client.list_snapshots)}
        return found

    def new_resources(self) -> set[str]:
        """Return what is on the storage now and was not when the check began."""
        return self.resources() - self._before

    def create_foreign(self, create: Callable[[], object] | None = None) -> set[str]:
        """Call Storage.foreign, or this; return the resources that it created. They must remain until the end."""
        before = self.resources()
        (create or self.storage.foreign or (lambda: None))()
        theirs = self.resources() - before
        self._before |= theirs
        return theirs

    def __enter__(self) -> CheckContext:
        self._calls.enter_context(self.injector.around(self.storage.calls))
        self._calls.enter_context(self._watch.watching_logs())
        self._before = self.resources()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._calls:
            if error is None:
                self._watch.search_files(self.storage)
                self._remove_and_verify()
                self._watch.expect_nothing_found()
                return
            with suppress(Exception, ProcessDied):  # the failure of the check matters more than the one of its clean-up
                self._remove()

    def _remove_and_verify(self) -> None:
        self._remove()
        if left := self.new_resources():
            raise CheckFailed(f"remaining after everything was deleted: {', '.join(sorted(left)[:10])}")

    def _remove(self) -> None:
        """Try to remove each resource, whatever happens to the others. Raises the first error that remains."""
        if self.client.target is Target.BACKEND:
            self.in_process.replace_dead_process()
        calls = [partial(self.backend.close_device, handle) for handle in self._open]
        calls += [partial(self.client.detach, handle, None) for handle in self._attached]
        calls += [partial(self.client.delete_group, handle) for handle in self._groups]
        # Which resource depends on which differs between storage systems, so they are tried again; copies come first.
        calls += [partial(self.client.delete, handle) for handle in reversed(self._volumes)]
        calls += [partial(self.client.delete_snapshot, handle) for handle in reversed(self._snapshots)]
        make_all(calls, tuple(self.client.kind_of(one) for one in NOT_FINAL))


def source(of: Volume | Snapshot) -> Source:
    kind = SourceKind.VOLUME if isinstance(of, Volume) else SourceKind.SNAPSHOT
    return Source(kind=kind, handle=of.handle)


def pages(read: Any, limit: int = 0, **more: Any) -> list[Any]:
    """Return all items of a paged listing. Raises CheckFailed for a cursor that repeats."""
    items, cursor = [], ""
    while True:
        page = read(cursor, limit, **more)
        items += page.items
        if not page.cursor:
            return items
        expect(page.cursor != cursor, f"the listing repeats cursor {cursor!r}")
        cursor = page.cursor


def in_process(storage: Storage) -> CheckContext:
    """Return the context of a check that runs on a backend object in this process."""
    storage, injector = marked(storage), FaultInjector(storage.files)
    client = InProcessClient(storage, injector)
    features = features_of(type(client.backend))
    if isinstance(client.backend, Topology) and client.backend.everywhere:
        features -= {Topology}  # the driver advertises no topology for such a backend
    return CheckContext(storage, client, features, injector)
