"""The description of a storage system that an author gives to the kit: how to connect, and what it can do."""

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
    """Return a Setting for a backend's constructor."""
    return Setting(instance=instance, driver=DRIVER, cluster=CLUSTER, node=node, host=host)


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
    resources: return the names of everything on the storage system now: own and foreign resources, complete and
        incomplete ones, one or more names for each. A leak is a name that appears during a check and remains.
        Without this field only the listings show leaks.
    foreign: create resources of another owner that look as similar as possible: another driver's, another
        cluster's, made by hand. They must survive and must not be listed. It may be called again.
    foreign_handles: handles of the resources that `foreign` creates. Deleting them must be refused.
    nodes: two or more nodes to which volumes can be attached (Attach).
    reachable, unreachable: segments where volumes can be created, and segments where they cannot (Topology).
    calls, files: the boundary, beside the commands of the host, which always count: functions, and directories
        whose files belong to the storage. Crashes and failures are injected at these calls.
    read_only_calls: how the calls that change nothing begin, for example ("lvm lvs",). A process that dies at
        such a call leaves the same state as one that dies at the next call. On slow storage crashes are
        therefore not tried there.
    budgets: the maximum number of calls through the boundary per contract method, for example {"create_volume": 3}.
    read, write: access to the data of a volume whose device cannot be opened on this machine, for example a fake.
    devices: whether open_device works on this machine (as root, with a kernel that supports the device).
    capability: how volumes are used; default: a raw block device with one writer.
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
        """Raise TypeError for a str in place of a tuple: it would be read one character at a time."""
        for name, kind in (("files", Path), ("calls", Call), ("read_only_calls", str), ("nodes", Node)):
            value = getattr(self, name)
            if not (isinstance(value, tuple) and all(isinstance(one, kind) for one in value)):
                raise TypeError(f"Storage.{name} must be a tuple of {kind.__name__}, not {value!r}")

    def backend(self) -> Backend:
        """Connect without fault injection."""
        return self.connect(LocalHost())
