"""The description of a storage system that an author gives to the kit: how to connect, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from csi_multi.contract import Backend, Capability, Host, Node, Segments, Setting, Strings
from csi_multi.host.command import LocalHost
from csi_multi.node import freeze

from .fault_injection import Call
from .storage_server import StorageServer

DRIVER = "kit.csi-multi.example"
CLUSTER = "kit"
NODE = "node-1"
MIB = 1 << 20

Connect = Callable[[Host], Backend]


_CHANGES: ContextVar[Mapping[str, Any]] = ContextVar("_CHANGES")


def setting(host: Host, *, node: str = NODE, instance: str = "kit") -> Setting:
    """Return a Setting for a backend's constructor."""
    made = Setting(instance=instance, driver=DRIVER, cluster=CLUSTER, node=node, host=host, frozen=freeze.frozen)
    return replace(made, **_CHANGES.get({}))


@contextmanager
def changed_setting(changes: Mapping[str, object]) -> Iterator[None]:
    """Let `setting` return these values in the block: the backends are those of another owner, node or role."""
    before = _CHANGES.set(changes)
    try:
        yield
    finally:
        _CHANGES.reset(before)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A storage system with a backend to test. Only `connect` is required. A field that is left out skips the
    checks that need it, and the report names the field.

    connect: create a new backend object over the same storage, as a starting process does. It gets the host to
        pass on in Setting (see `setting` above). It is called often and must keep nothing in memory.
    parameters, mutable: StorageClass and VolumeAttributesClass parameters of the volumes that are created.
    other_parameters, other_mutable: different, equally valid ones. A request with them is a conflict.
    size: bytes of a volume that is cheap to create, and created with exactly this size. Three times as much must be
        possible too. The checks of capacity fill the storage if it has at most 64 times as much space.
    exact_sizes: sizes that can be created exactly, if `size` and twice `size` cannot.
    too_large: bytes that no volume can have, or that are not available.
    overcommitted: whether new volumes take nothing of the capacity, because the storage promises its space any number
        of times (Capacity).
    large: bytes of a large volume: more than 4 GiB if the storage takes space only for what is written, else what three
        volumes may take of it. Each of the three holds up to 130 MiB of data. None: no large volume is made.
    occupy: return a context manager: for its block somebody else takes this many bytes of the storage, or all that is
        left if that is less. Default: files on the filesystems of `files`.
    resources: return the names of everything on the storage system now: own and foreign resources, complete and
        incomplete ones, one or more names for each. A leak is a name that appears during a check and remains.
        Without this field only the listings show leaks.
    foreign: create resources of another owner that look as similar as possible: another driver's, another
        cluster's, made by hand. They must survive and must not be listed. It may be called again.
    foreign_handles: handles of the resources that `foreign` creates. Deleting them must be refused.
    importable: create by hand something of `size` bytes that begins with these bytes and can be imported, and return
        its name for import_volume (Import). It is called often, and what it creates stays.
    nodes: two or more nodes to which volumes can be attached (Attach).
    reachable, unreachable: segments where volumes can be created, and segments where they cannot (Topology).
    calls, files: the boundary, beside the commands of the host, which always count: functions, and directories
        whose files belong to the storage. Crashes and failures are injected at these calls.
    records: directories with the storage's records, for a storage whose server keeps them and whose `files` are none of
        this process. Default: `files`. A check damages what it finds there.
    read_only_calls: how the calls that change nothing begin, for example ("lvm lvs",). A process that dies at
        such a call leaves the same state as one that dies at the next call. On slow storage crashes are
        therefore not tried there.
    budgets: the maximum number of calls through the boundary per contract method, for example {"create_volume": 3}.
    read, write: access to the data of a volume whose device cannot be opened on this machine, for example a fake.
    devices: whether open_device works on this machine (as root, with a kernel that supports the device).
    capability: how volumes are used; default: a raw block device with one writer.
    away: return a context manager: in its block the storage cannot be reached, or is not mounted where the backend
        looks: a directory without its disk, another pool under the name, an account that has nothing.
    also_away: further ways to be away, like `away`: the checks are made for each of them.
    damage, undamage: damage the volume with this handle so that its health is reported, and repair it.
    also_damage: further ways, each with its repair, that can be there beside `damage` and beside each other, and that
        health distinguishes from it: all of them are told then.
    shorten: return a context manager: for its block the storage has lost what it held of the last block of the volume
        with this handle, and behind it. Default: the end of the volume's file below `records`.
    effect: return what modify_volume has changed, as it is in force for the volume with this handle now: read from
        where I/O is served (a limit of the kernel, a setting of the server), and not from what was stored.
    snapshots: the most snapshots that one volume can have in its life, deleted ones included; default: no limit.
    layers: whether a snapshot, a copy, or the deletion of one may put a resource in the place of another one, as with
        layers that are copied on write.
    together: return a context manager: in its block the volumes with these handles are where the storage can cut them
        as one group, for example attached to one node. Handles of volumes that are gone are left out. Needed only where
        new volumes cannot be cut together as they are.
    power_cut: cut the power of the storage and start it again: what was not made durable is lost, and so are all
        mounts and devices. `Disk` (csi_multi_testing) does it, and `away`, for backends that keep files.
    server: the process on this machine that serves the storage: how to find it, and how to start it again. It is killed
        at each change that it makes to its disk, and stopped while methods with a deadline wait for it.
    credentials: files with a secret that the backend reads because its configuration names them. A check writes other
        texts into them, and then what was there before: give files that nobody else needs meanwhile.
    rotate: return a context manager: for its block the storage accepts another credential, and no longer the one from
        before. It is where the configuration says that it is, or, where it comes with the requests, the context
        manager yields the secrets that differ. After the block all is as before.
    complete: whether the checks that copy volumes while they are written do so 50 times, and chains of snapshots are
        deleted in all 24 orders, which takes minutes on slow storage. Otherwise they copy for half a second (groups:
        for one) and twice at least, and delete for two seconds, in one order at least.
    restarted: called after a simulated process died and before the next one connects: for fakes that must drop,
        for example, a session or a lock lease.
    """

    connect: Connect
    parameters: Strings = field(default_factory=dict)
    other_parameters: Strings | None = None
    mutable: Strings = field(default_factory=dict)
    other_mutable: Strings | None = None
    secrets: Strings = field(default_factory=dict, repr=False)
    size: int = 16 * MIB
    exact_sizes: tuple[int, ...] = ()
    too_large: int = 1 << 60
    overcommitted: bool = False
    large: int | None = None
    occupy: Callable[[int], AbstractContextManager[object]] | None = None  # (bytes)
    resources: Callable[[], Collection[str]] | None = None
    foreign: Callable[[], None] | None = None
    foreign_handles: tuple[str, ...] = ()
    importable: Callable[[bytes], str] | None = None
    nodes: tuple[Node, ...] = ()
    reachable: tuple[Segments, ...] = ()
    unreachable: tuple[Segments, ...] = ()
    calls: tuple[Call, ...] = ()
    files: tuple[Path, ...] = ()
    records: tuple[Path, ...] = ()
    read_only_calls: tuple[str, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    read: Callable[[str, int, int], bytes] | None = None  # (handle, offset, length)
    write: Callable[[str, int, bytes], None] | None = None  # (handle, offset, data)
    devices: bool = False
    capability: Capability | None = None
    away: Callable[[], AbstractContextManager[object]] | None = None
    also_away: tuple[Callable[[], AbstractContextManager[object]], ...] = ()
    damage: Callable[[str], object] | None = None  # (handle)
    undamage: Callable[[str], object] | None = None
    also_damage: tuple[tuple[Callable[[str], object], Callable[[str], object]], ...] = ()  # (damage, repair) each
    shorten: Callable[[str], AbstractContextManager[object]] | None = None  # (handle)
    effect: Callable[[str], object] | None = None
    snapshots: int | None = None
    layers: bool = False
    together: Callable[[Collection[str]], AbstractContextManager[object]] | None = None
    power_cut: Callable[[], object] | None = None
    server: StorageServer | None = None
    credentials: tuple[Path, ...] = ()
    rotate: Callable[[], AbstractContextManager[Mapping[str, str] | None]] | None = None
    complete: bool = False
    restarted: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Raise TypeError for a str in place of a tuple: it would be read one character at a time."""
        if not self.records:
            object.__setattr__(self, "records", self.files)
        paths = (("files", Path), ("records", Path), ("credentials", Path))
        for name, kind in (*paths, ("calls", Call), ("read_only_calls", str), ("nodes", Node)):
            value = getattr(self, name)
            if not (isinstance(value, tuple) and all(isinstance(one, kind) for one in value)):
                raise TypeError(f"Storage.{name} must be a tuple of {kind.__name__}, not {value!r}")

    def backend(self) -> Backend:
        """Connect without fault injection."""
        return self.connect(LocalHost())
