"""What an author tells the kit: how to connect to the storage, and what it may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from csi_multi.contract import Backend, Capability, Host, Node, Segments, Setting, Strings
from csi_multi.host.command import LocalHost

from .fault_injection import Call

DRIVER = "kit.csi-multi.example"
CLUSTER = "kit"
NODE = "node-1"
MIB = 1 << 20

Connect = Callable[[Host], Backend]


def setting(host: Host, *, node: str = NODE, instance: str = "kit") -> Setting:
    """Return a Setting to construct a backend with."""
    return Setting(instance=instance, driver=DRIVER, cluster=CLUSTER, node=node, host=host)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A storage system with a backend to test. Only `connect` is required; each field left out skips the
    checks that need it, and the report says so.

    connect: make a new backend object over the same storage, as a process that starts does. It gets
        the host to pass on in Setting (see `setting` above). Called often; keeps nothing in memory.
    parameters, mutable: StorageClass and VolumeAttributesClass parameters of the volumes that are made.
    other_parameters, other_mutable: different, equally valid ones: a request with them is a conflict.
    size: bytes of a volume that is cheap to make, and made exactly; three times as much must be possible,
        too. The checks of capacity fill the storage when it has at most 64 times as much room.
    exact_sizes: sizes that can be made exactly, when `size` and twice it cannot.
    too_large: bytes that no volume can ever have, or that are not there.
    resources: everything that is on the storage system now, ours and others', half-made things included,
        as names, one or more for each. Leaks are what is there after a check and was not before. Without
        it only listings tell.
    foreign: put things of somebody else on the storage that look as much like ours as they can: another
        driver's, another cluster's, made by hand. They must survive and stay unlisted. It may be called
        again when they are there already.
    foreign_handles: handles that point to what `foreign` put there; deleting them must be refused.
    nodes: two or more nodes that volumes can be attached to (Attach).
    reachable, unreachable: segments where volumes can be made, and some where they cannot (Topology).
    calls, files: the boundary, beside the commands of the host, which always count: functions, and
        directories whose files belong to the storage. Crashes and failures are injected there.
    read_only_calls: how the calls that change nothing begin, for example ("lvm lvs",). A process that dies at
        such a call leaves the same state as one that dies at the next call. On slow storage crashes are
        therefore not tried there.
    budgets: most calls through the boundary per contract method, for example {"create_volume": 3}.
    read, write: the bytes of a volume, where its device cannot be opened on this machine: a fake.
    devices: whether open_device works here (root, a kernel that has the device).
    capability: how volumes are used; default: a raw block device with one writer.
    restarted: called after a process "died", before the next connects, with nothing to return: for
        fakes that must forget, for example, a session or a lock lease.
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
    resources: Callable[[], Collection[str]] | None = None
    foreign: Callable[[], None] | None = None
    foreign_handles: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    reachable: tuple[Segments, ...] = ()
    unreachable: tuple[Segments, ...] = ()
    calls: tuple[Call, ...] = ()
    files: tuple[Path, ...] = ()
    read_only_calls: tuple[str, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    read: Callable[[str, int, int], bytes] | None = None  # (handle, offset, length)
    write: Callable[[str, int, bytes], None] | None = None  # (handle, offset, data)
    devices: bool = False
    capability: Capability | None = None
    restarted: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Raises TypeError for what would be read one character at a time."""
        for name, kind in (("files", Path), ("calls", Call), ("read_only_calls", str), ("nodes", Node)):
            value = getattr(self, name)
            if not (isinstance(value, tuple) and all(isinstance(one, kind) for one in value)):
                raise TypeError(f"Storage.{name} must be a tuple of {kind.__name__}, not {value!r}")

    def backend(self) -> Backend:
        """Connect without the kit in between."""
        return self.connect(LocalHost())
