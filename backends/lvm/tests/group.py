"""Real volume groups on loop devices, and an LVM that sees no other disks.

LVM is configured for the tests alone: in their own mount namespace its directories are empty and in memory, and its
filter accepts only the tests' disks, never the machine's. Old metadata is not archived, because every change would
read the names of all archives.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import Host, StorageError
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost

from . import ondisk

MIB = 2**20
GIB = 2**30
EXTENT = 4 * MIB
LIMIT = 60.0  # seconds for one command of the tests' own
POOL = "pool0"
CONFIGURATION = Path("/etc/lvm")
DIRECTORIES = (CONFIGURATION, Path("/run/lvm"), Path("/run/lock/lvm"))  # configuration, backups; hints; locks
TEXT = """\
devices {{
    filter = [{filter}]
    use_devicesfile = 0
    obtain_device_list_from_udev = 0
}}
activation {{
    monitoring = 0
    udev_sync = {udev}
    udev_rules = {udev}
}}
backup {{
    archive = 0
}}
global {{
    event_activation = 0
    use_lvmpolld = 0
    {thin_check}
}}
"""


class Lvm:
    """LVM as the tests see it. Use it as a context, once per process, in a mount namespace of its own."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.disks: list[Path] = []
        self._mounted = ExitStack()

    def __enter__(self) -> Lvm:
        """Raises RuntimeError where the machine's own LVM would be changed."""
        if Path("/proc/self/ns/mnt").readlink() == Path("/proc/1/ns/mnt").readlink():
            raise RuntimeError("tests of LVM need a mount namespace of their own: run them by make lvm ARGS=...")
        with ExitStack() as mounted:
            for directory in DIRECTORIES:
                directory.mkdir(parents=True, exist_ok=True)
                self.host.run("mount", "-t", "tmpfs", "-o", "mode=700", "csi-multi-tests", str(directory))
                mounted.callback(self.host.run, "umount", str(directory))
            self._configure()
            self._mounted = mounted.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._mounted.close()

    def run(self, *words: str, timeout: float = LIMIT) -> list[str]:
        """Run a command and return the lines it prints, without blanks around them."""
        return [line.strip() for line in self.host.run(*words, timeout=timeout).stdout.splitlines()]

    def use(self, *disks: Path) -> None:
        """Let LVM see these devices, too."""
        self.disks += disks
        self._configure()

    def forget(self, *disks: Path) -> None:
        self.disks = [disk for disk in self.disks if disk not in disks]
        self._configure()

    def _configure(self) -> None:
        accepted = [f'"a|^{disk}$|"' for disk in self.disks]
        thin_check = "" if shutil.which("thin_check", path="/usr/sbin:/sbin") else 'thin_check_executable = ""'
        udev = int(Path("/run/udev/control").exists())
        text = TEXT.format(filter=", ".join([*accepted, '"r|.*|"']), udev=udev, thin_check=thin_check)
        (CONFIGURATION / "lvm.conf").write_text(text)

    def groups(self) -> list[str]:
        return self.run("vgs", "--noheadings", "-o", "vg_name")

    def kernel(self) -> set[str]:
        """Return what the kernel has of LVM's: devices of device-mapper, and bound loop devices."""
        return {*_mapped(), *(f"{device} of {file}" for device, file in loopdev.bound_devices().items())}


def _mapped() -> Iterator[str]:
    """Describe the devices of device-mapper, without the tenth of a second that dmsetup takes."""
    for entry in Path("/sys/block").glob("dm-*"):
        with suppress(FileNotFoundError):  # it has disappeared
            name, sectors, suspended = (
                (entry / file).read_text().strip() for file in ("dm/name", "size", "dm/suspended")
            )
            below = " ".join(sorted(path.name for path in (entry / "slaves").iterdir()))
            yield f"{name}: {sectors} sectors over {below}{' suspended' if suspended == '1' else ''}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """A volume group with extents of 4 MiB."""

    lvm: Lvm
    name: str
    disks: tuple[Path, ...]
    pool: str  # "" without
    own: frozenset[str]  # the logical volumes that belong to it: the pool and its parts

    def left(self) -> list[str]:
        """Return the logical volumes that tests have created in it."""
        return sorted(ondisk.volumes(self.disks[0]) - self.own)

    def devices(self) -> list[str]:
        """Return the names that device-mapper has for devices of this group."""
        names = [file.read_text().strip() for file in Path("/sys/block").glob("dm-*/dm/name")]
        return [name for name in names if name.startswith(f"{self.name.replace('-', '--')}-")]


_numbers = itertools.count(1)


@contextmanager
def volume_group(
    lvm: Lvm, directory: Path, *, disks: int = 4, size: int = GIB, pool: int = 0, sector: int = 512
) -> Iterator[Group]:
    """Create a group on loop devices over sparse files of `size` bytes, with a thin pool of `pool` bytes or none.

    Every command of lvm reads all disks, so few are fast. The group is removed with everything in it. Raises
    AssertionError when tests have left anything in it.
    """
    name = f"csi-test-{os.getpid()}-{next(_numbers)}"
    with _disks(lvm, directory / name, disks, size, sector) as devices:
        try:
            paths = [str(device) for device in devices]
            lvm.run("vgcreate", "-qq", "--setautoactivation", "n", "-s", f"{EXTENT}b", name, *paths)
            if pool:
                lvm.run("lvcreate", "-qq", "-L", f"{pool}b", "-V", f"{EXTENT}b", "-n", "first", "-T", f"{name}/{POOL}")
                lvm.run("lvremove", "-qq", "-y", f"{name}/first")  # a pool that was used has one device more
            own = frozenset(ondisk.volumes(devices[0]))
            group = Group(lvm=lvm, name=name, disks=devices, pool=POOL if pool else "", own=own)
            yield group
            left = group.left()
        finally:
            with suppress(StorageError):  # it may be broken, by a test's intention; the disks go in any case
                lvm.run("vgremove", "-qq", "-ff", "-y", name)
        assert left == [], f"left in {name}: {left}"


@contextmanager
def _disks(lvm: Lvm, directory: Path, count: int, size: int, sector: int) -> Iterator[tuple[Path, ...]]:
    directory.mkdir(parents=True)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        devices = []
        for number in range(count):
            file = directory / f"disk{number}"
            with file.open("wb") as disk:
                disk.truncate(size)
            device = Path(lvm.run("losetup", "--find", "--show", "-b", str(sector), str(file))[0])
            undo.callback(loopdev.detach, lvm.host, device)
            devices.append(device)
        undo.callback(lvm.forget, *devices)
        lvm.use(*devices)
        yield tuple(devices)


@contextmanager
def nothing_stays(lvm: Lvm, tmp_path: Path | None = None) -> Iterator[None]:
    """Demand that the kernel has the same devices afterwards, and nothing is mounted below a path."""
    before = lvm.kernel()
    yield
    after = lvm.kernel()
    changes = [f"new: {one}" for one in sorted(after - before)] + [f"gone: {one}" for one in sorted(before - after)]
    if changes:
        raise AssertionError("\n".join(["the kernel has other devices than before", *changes]))
    if tmp_path:
        below = [mount.target for mount in mounts.table() if mount.target.startswith(f"{tmp_path}/")]
        assert below == [], f"still mounted: {below}"


@contextmanager
def own_lvm(host: Host | None = None) -> Iterator[Lvm]:
    """Configure LVM for the tests of this process, and demand that they leave nothing at all."""
    with Lvm(host or LocalHost()) as lvm, nothing_stays(lvm):
        yield lvm
        assert (left := lvm.groups()) == [], f"volume groups are left: {left}"


NewGroup = Callable[..., Group]


def playground() -> None:
    """Start a shell with a volume group, which is removed when the shell ends."""
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        group = undo.enter_context(volume_group(undo.enter_context(own_lvm()), directory, pool=512 * MIB))
        print(f"volume group {group.name} with thin pool {group.pool}; remove what you make, then exit", flush=True)
        subprocess.run([os.environ.get("SHELL", "/bin/sh")], env={**os.environ, "GROUP": group.name}, check=False)


if __name__ == "__main__":
    playground()
