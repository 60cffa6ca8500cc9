"""The lvm commands of one volume group. No other module runs lvm.

A logical volume is absent only if a report that succeeded does not list it, never because a command failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from csi_multi.contract import Busy, Host, InvalidArgument, Result, Unavailable

from . import labels, report
from .config import Config
from .errors import INVALID_ARGUMENTS, REFUSED, CommandRefused
from .report import LogicalVolume, Report, Sections

JSON = ("--reportformat", "json", "--units", "b", "--nosuffix", "--binary")
HOST_NAMESPACES = ("nsenter", "--target", "1", "--mount", "--ipc", "--")
UDEV_SOCKET = Path("/run/udev/control")
IPC_NAMESPACE = Path("/proc/self/ns/ipc")
HOST_IPC_INODE = 0xEFFFFFFF  # inode of the IPC namespace that the kernel starts with (linux/proc_ns.h)


class Client:
    """The lvm commands of one volume group."""

    def __init__(self, host: Host, config: Config) -> None:
        self._host = host
        self._group = config.volume_group
        self._time_limit = float(config.command_seconds)
        self._prefix = HOST_NAMESPACES if config.namespace == "host" else ()
        self._config = config
        self._settings: tuple[str, ...] | None = None

    # Reports

    def report(self) -> Report:
        """Return the whole group. Raises Unavailable when it does not exist or cannot be read."""
        # fmt: off
        sections = self._query(
            "fullreport", *JSON,
            "--configreport", "vg", "-o", report.GROUP_FIELDS,
            "--configreport", "pv", "-o", report.DISK_FIELDS,
            "--configreport", "lv", "-o", report.VOLUME_FIELDS,
            "--configreport", "pvseg", "-o", "pv_name",
            "--configreport", "seg", "-o", report.SEGMENT_FIELDS,
            self._group,
        )
        # fmt: on
        if not sections.vg:
            raise Unavailable(
                f"lvm reports nothing about volume group {self._group}; check with vgs whether it exists and its disks "
                "are there"
            )
        return sections.report()

    def find(self, *names: str) -> dict[str, LogicalVolume]:
        """Return those of these logical volumes that exist. Raises Unavailable."""
        condition = " || ".join(f'lv_name="{name}"' for name in names)
        fields = f"vg_uuid,{report.VOLUME_FIELDS}"
        return self._query("lvs", *JSON, "-o", fields, "-S", condition, self._group).volumes()

    def get(self, name: str) -> LogicalVolume:
        """Return a logical volume that was found or created just now. Raises Busy when it is gone, Unavailable."""
        found = self.find(name).get(name)
        if found is None:
            raise Busy(f"another process removed logical volume {name} at the same time; try again")
        return found

    def extent_ranges(self, name: str) -> list[str]:
        """Return the physical extents of a logical volume and of its RAID images, as arguments of `extend`."""
        condition = f'lv_name="{name}" || lv_name=~"^{name}_rimage_[0-9]+$"'
        fields = ("-o", "lv_name,seg_pe_ranges", "-S", condition)
        return self._query("lvs", "-a", "--segments", *JSON, *fields, self._group).extent_ranges()

    def thin_ids(self, *names: str) -> dict[str, int]:
        """Return the numbers that thin volumes have in their pool, of those that exist. Raises Unavailable."""
        condition = " || ".join(f'lv_name="{name}"' for name in names)
        return self._query("lvs", "--segments", *JSON, "-o", "lv_name,thin_id", "-S", condition, self._group).thin_ids()

    def lock_directory(self) -> Path:
        """Return the directory of lvm's lock files. Raises Unavailable."""
        result = self._run("lvmconfig", "--typeconfig", "full", "global/locking_dir")
        path = result.stdout.strip().partition("=")[2].strip('"')
        if not path.startswith("/"):
            raise Unavailable(f"lvmconfig does not tell global/locking_dir, but {result.stdout!r}; check lvm.conf")
        return Path("/proc/1/root" + path if self._prefix else path)

    def disks(self, name: str) -> list[str]:
        """Return the disks that hold a logical volume."""
        return list(dict.fromkeys(extents.partition(":")[0] for extents in self.extent_ranges(name)))

    # Changes. All of them raise CommandRefused.

    def create(self, name: str, options: Sequence[str], tags: Iterable[str], disks: Sequence[str] = ()) -> None:
        """Create a logical volume, inactive now and at boot, on these disks if any are given."""
        self._run("lvcreate", "-an", "-ky", *options, "-n", name, *labels.add_options(tags), self._group, *disks)

    def create_snapshot(self, name: str, source: str, options: Sequence[str], tags: Iterable[str]) -> None:
        """Create a snapshot of a logical volume, which may be active."""
        path = f"{self._group}/{source}"
        self._run("lvcreate", "-s", "-ky", *options, "-n", name, *labels.add_options(tags), path)

    def remove(self, name: str, condition: str, *, active: bool = False) -> bool:
        """Remove a logical volume if the condition holds at that moment; with `active` also when it is active.

        Return whether lvm removed it. The condition protects snapshots: without it, one that is created at this
        moment would be removed with its source.
        """
        selection = f'lv_name="{name}" && {condition}'
        confirmation = ("--yes",) if active else ()
        discards = ("devices/issue_discards=1",) if self._config.discard_on_delete else ()
        result = self._run("lvremove", *confirmation, "-S", selection, self._group, settings=discards)
        return "successfully removed" in result.stdout

    def remove_all(self, condition: str) -> None:
        """Remove the logical volumes for which the condition holds at that moment, inactive ones, or snapshots."""
        self._run("lvremove", "--yes", "-S", condition, self._group)

    def extend(self, name: str, extents: int, ranges: Sequence[str] = (), *, same_disks: bool = False) -> None:
        """Grow to so many extents, with the additional ones from these ranges if any are given.

        With `same_disks`, each part grows only on the disks that it is on already. Without it, LVM may put one
        copy of a RAID volume onto the disk of another, without an error.
        """
        allocation = ("--alloc", "cling") if same_disks else ()
        self._run("lvextend", *allocation, "-l", str(extents), f"{self._group}/{name}", *ranges)

    def extend_thin(self, name: str, size: int) -> None:
        """Grow a thin volume to so many bytes."""
        self._run("lvextend", "-L", f"{size}b", f"{self._group}/{name}")

    def change_tags(
        self, name: str, *, add: Iterable[str] = (), remove: Iterable[str] = (), condition: str = ""
    ) -> bool:
        """Remove and add tags, in one step, if the condition holds at that moment; return whether lvm says so.

        A tag that is to be removed need not be there.
        """
        removals = [argument for tag in remove for argument in ("--deltag", tag)]
        selection = ("-S", condition) if condition else ()
        result = self._run("lvchange", *removals, *labels.add_options(add), *selection, f"{self._group}/{name}")
        return " changed." in result.stdout

    def tag_all(self, condition: str, tags: Iterable[str]) -> None:
        """Add tags to the logical volumes for which the condition holds at that moment, to one after the other."""
        self._run("lvchange", *labels.add_options(tags), "-S", condition, self._group)

    def rename(self, old: str, new: str) -> None:
        """Rename a logical volume, active or not."""
        self._run("lvrename", self._group, old, new)

    def activate(self, name: str, condition: str = "") -> None:
        """Make the device appear if the condition holds at that moment, also of a volume that is skipped at boot.

        Tags are changed by another command: lvm has none that does both under one lock.
        """
        selection = ("-S", condition) if condition else ()
        self._run("lvchange", "-ay", "-K", *selection, f"{self._group}/{name}")

    def deactivate(self, name: str, condition: str = "") -> None:
        """Make the device disappear, if the condition holds at that moment."""
        selection = ("-S", condition) if condition else ()
        self._run("lvchange", "-an", *selection, f"{self._group}/{name}")

    def refresh(self, name: str) -> None:
        """Load the kernel's table again, which also resumes a device that a killed command left suspended."""
        self._run("lvchange", "--refresh", f"{self._group}/{name}")

    def add_integrity(self, name: str) -> None:
        """Add integrity to an inactive RAID volume, which activates it.

        lvcreate could do this, too, but it interrupts the first synchronisation, and kernels such as 6.1 deadlock.
        """
        self._run("lvconvert", "--yes", "--raidintegrity", "y", f"{self._group}/{name}")

    # Running commands

    def _query(self, command: str, *arguments: str) -> Sections:
        result = self._run(command, *arguments)
        try:
            return report.decode(result.stdout)
        except msgspec.DecodeError as error:
            raise Unavailable(
                f"the report of {command} about volume group {self._group} cannot be read: {error}; "
                "check whether this version of LVM is supported"
            ) from None

    def _run(self, command: str, *arguments: str, settings: tuple[str, ...] = ()) -> Result:
        """Run an lvm command. Raises CommandRefused for lvm's own failures, otherwise what Host.run raises."""
        overrides = " ".join((*self._own_settings(), *settings))
        config = ("--config", overrides) if overrides else ()
        argv = (*self._prefix, "lvm", command, *config, *arguments)
        result = self._host.run(*argv, ok=(0, INVALID_ARGUMENTS, REFUSED), timeout=self._time_limit)
        if result.status == INVALID_ARGUMENTS:
            raise InvalidArgument(
                f"{command} on this node does not accept its arguments: {result.stderr.strip()}; "
                "change the StorageClass's parameters, or install a newer LVM"
            )
        if result.status == REFUSED:
            raise CommandRefused(command, result)
        return result

    def _own_settings(self) -> tuple[str, ...]:
        """Return the settings that replace those of lvm.conf; none in the host's namespaces."""
        if self._settings is None:
            own = self._config.namespace == "own"
            udev = self._config.udev == "yes" or (self._config.udev == "auto" and (not own or _udev_available()))
            self._settings = (
                *(("activation/monitoring=0",) if own else ()),  # dmeventd must not run in a container
                *(() if udev else ("activation/udev_sync=0", "activation/udev_rules=0")),
            )
        return self._settings


def _udev_available() -> bool:
    """Return whether udev runs and can signal lvm, which it does by semaphores of the host's IPC namespace."""
    return UDEV_SOCKET.exists() and IPC_NAMESPACE.stat().st_ino == HOST_IPC_INODE
