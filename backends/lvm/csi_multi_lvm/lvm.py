"""The only module that knows lvm's command line, reports and messages.

Failures are told by the exit status; the text beside it only says which failure. A logical volume is
absent when a report that succeeded does not have it, never because a command failed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from csi_multi.contract import FailedPrecondition, Host, InUse, InvalidArgument, ResourceExhausted, Result, Unavailable

from . import tags
from .config import Config
from .report import Group, LogicalVolume, PhysicalVolume, Report

log = logging.getLogger(__name__)

INVALID = 3  # exit status for words that lvm does not take: nothing was done
REFUSED = 5  # the exit status of every refusal and failure
FIELDS = (
    "lv_uuid,lv_name,lv_size,lv_tags,lv_layout,lv_role,origin,pool_lv,lv_active,lv_device_open,lv_suspended,"
    "lv_snapshot_invalid,lv_health_status,data_percent,metadata_percent,sync_percent"
)
GROUP_FIELDS = "vg_name,vg_uuid,vg_extent_size,vg_extent_count,vg_free_count,vg_missing_pv_count,vg_mda_free"
DISK_FIELDS = "pv_name,pv_pe_count,pv_pe_alloc_count,pv_missing,pv_allocatable"
PLAIN = ("--reportformat", "json", "--units", "b", "--nosuffix", "--binary")
HOST = ("nsenter", "--target", "1", "--mount", "--ipc", "--")
UDEV = Path("/run/udev/control")
IPC = Path("/proc/self/ns/ipc")
FIRST_IPC = 0xEFFFFFFF  # inode of the namespace the kernel starts with (linux/proc_ns.h)

# What lvm says, beside exit status 5, in the locale C.
FULL = (
    "insufficient free space",
    "insufficient suitable",
    "insufficient free extents",
    "not enough",
    "no space",
    "reached threshold",
)
IN_USE = (" in use", "is used by another device", "open count")
TAKEN = ("already exists",)
ACTIVE_ORIGIN = ("can be resized only while inactive",)
INCOMPLETE = ("while pvs are missing", "while physical volumes are missing", "is partial", "partial lv")


class Refused(Unavailable):
    """lvm exited with status 5. `text` is what it said, in lower case, without warnings."""

    def __init__(self, command: str, result: Result) -> None:
        lines = [line.strip() for line in result.stderr.splitlines()]
        said = [line for line in lines if line and not line.startswith("WARNING:")] or lines
        super().__init__(f"{command}: {'; '.join(said) or 'failed without a word'}")
        self.text = " ".join(said).lower()

    def said(self, phrases: Iterable[str]) -> bool:
        return any(phrase in self.text for phrase in phrases)

    def narrowed(self) -> Exception:
        """Return the error that this refusal is when nothing was changed, else itself."""
        if self.said(FULL):
            return ResourceExhausted(f"{self}; delete volumes or snapshots, or add disks to the group with vgextend")
        if self.said(INCOMPLETE):
            return ResourceExhausted(f"{self}; bring the disks back, or see the recovery recipes")
        if self.said(ACTIVE_ORIGIN):
            return FailedPrecondition(
                f"{self}: a thick volume with snapshots cannot grow while it is in use; delete its snapshots, "
                "or stop the pods that use it"
            )
        if self.said(IN_USE):
            return InUse(f"{self}; unpublish and unstage the volume first")
        return self


class Lvm:
    """The commands of one volume group."""

    def __init__(self, host: Host, config: Config) -> None:
        self._host = host
        self._group = config.volume_group
        self._limit = float(config.command_seconds)
        self._prefix = HOST if config.namespace == "host" else ()
        self._config = config
        self._settings: tuple[str, ...] | None = None

    # Looking

    def report(self) -> Report:
        """Return the whole group. Raises Unavailable when it is not there."""
        # fmt: off
        answer = self._json(
            "fullreport", *PLAIN, "--configreport", "vg", "-o", GROUP_FIELDS, "--configreport", "pv", "-o", DISK_FIELDS,
            "--configreport", "lv", "-o", FIELDS, "--configreport", "pvseg", "-o", "pv_name",
            "--configreport", "seg", "-o", "lv_name,zero", self._group,
        )
        # fmt: on
        if not answer.vg:
            raise Unavailable(f"lvm reports nothing about volume group {self._group}")
        zeroing = {row.lv_name for row in answer.seg if row.zero == "1"}
        uuid = answer.vg[0].vg_uuid
        return Report(
            group=answer.vg[0].value(),
            volumes={row.lv_name: row.value(uuid, zeroing=row.lv_name in zeroing) for row in answer.lv},
            disks=tuple(row.value() for row in answer.pv),
        )

    def look(self, *names: str) -> dict[str, LogicalVolume]:
        """Return those of these logical volumes that exist."""
        which = " || ".join(f'lv_name="{name}"' for name in names)
        answer = self._json("lvs", *PLAIN, "-o", f"vg_uuid,{FIELDS}", "-S", which, self._group)
        return {row.lv_name: row.value(row.vg_uuid) for row in answer.lv}

    def places(self, name: str) -> list[str]:
        """Return the physical extents of a logical volume and of its parts, as words for `extend`."""
        which = f'lv_name="{name}" || lv_name=~"^{name}_rimage_[0-9]+$"'
        fields = ("-o", "lv_name,seg_pe_ranges", "-S", which)
        answer = self._json("lvs", "-a", "--segments", *PLAIN, *fields, self._group)
        return [place for row in answer.seg for place in row.seg_pe_ranges.split() if place.startswith("/")]

    def disks(self, name: str) -> list[str]:
        """Return the disks that a logical volume lies on."""
        return list(dict.fromkeys(place.partition(":")[0] for place in self.places(name)))

    # Changing

    def create(self, name: str, words: Sequence[str], tagged: Iterable[str], disks: Sequence[str] = ()) -> None:
        """Make a logical volume that stays inactive, now and at boot, on these disks if any. Raises Refused."""
        self._run("lvcreate", "-an", "-ky", *words, "-n", name, *tags.words(tagged), self._group, *disks)

    def snapshot(self, name: str, source: str, words: Sequence[str], tagged: Iterable[str]) -> None:
        """Make a snapshot, of the moment, of an active or inactive logical volume. Raises Refused."""
        self._run("lvcreate", "-s", "-ky", *words, "-n", name, *tags.words(tagged), f"{self._group}/{source}")

    def remove(self, name: str, condition: str, *, active: bool = False) -> bool:
        """Remove a logical volume if the condition holds at that moment; `active`: also when it is active.

        Return whether lvm says that it did. Without the condition, a snapshot that somebody cuts just
        now would go with its source. Raises Refused.
        """
        which = f'lv_name="{name}" && {condition}'
        words = ("--yes",) if active else ()
        discards = ("devices/issue_discards=1",) if self._config.discard_on_delete else ()
        result = self._run("lvremove", *words, "-S", which, self._group, settings=discards)
        return "successfully removed" in result.stdout

    def extend(self, name: str, extents: int, places: Sequence[str] = (), *, cling: bool = False) -> None:
        """Grow to so many extents, taken from these places if any are given.

        `cling`: only on the disks that each part lies on already. Otherwise LVM may put one copy of RAID onto
        the disk of another without a word. Raises Refused.
        """
        near = ("--alloc", "cling") if cling else ()
        self._run("lvextend", *near, "-l", str(extents), f"{self._group}/{name}", *places)

    def extend_to(self, name: str, size: int) -> None:
        """Grow a thin volume to so many bytes. Raises Refused."""
        self._run("lvextend", "-L", f"{size}b", f"{self._group}/{name}")

    def retag(self, name: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """Take tags away and give others, in one step. Raises Refused."""
        gone = [word for tag in remove for word in ("--deltag", tag)]
        self._run("lvchange", *gone, *tags.words(add), f"{self._group}/{name}")

    def rename(self, old: str, new: str) -> None:
        """Give it another name, active or not. Raises Refused."""
        self._run("lvrename", self._group, old, new)

    def activate(self, name: str) -> None:
        """Make the device appear, also one that is skipped at boot. Raises Refused."""
        self._run("lvchange", "-ay", "-K", f"{self._group}/{name}")

    def deactivate(self, name: str, condition: str = "") -> None:
        """Make the device disappear, if the condition holds at that moment. Raises Refused."""
        which = ("-S", condition) if condition else ()
        self._run("lvchange", "-an", *which, f"{self._group}/{name}")

    def reload(self, name: str) -> None:
        """Give the kernel its table anew, which also resumes a device that a killed command left suspended."""
        self._run("lvchange", "--refresh", f"{self._group}/{name}")

    def protect(self, name: str) -> None:
        """Add integrity to an inactive RAID volume, which activates it. Raises Refused.

        Kernels 6.1 and others deadlock when lvcreate does it, for it stops the first synchronisation.
        """
        self._run("lvconvert", "--yes", "--raidintegrity", "y", f"{self._group}/{name}")

    # Running

    def _json(self, command: str, *words: str) -> _Sections:
        result = self._run(command, *words)
        try:
            sections = msgspec.json.decode(result.stdout, type=_Answer, strict=False).report
        except msgspec.DecodeError as error:
            raise Unavailable(f"{command} of volume group {self._group} gave no report: {error}") from None
        merged = _Sections()
        for section in sections:
            merged.vg += section.vg
            merged.pv += section.pv
            merged.lv += section.lv
            merged.seg += section.seg
        return merged

    def _run(self, command: str, *words: str, settings: tuple[str, ...] = ()) -> Result:
        """Run one lvm command. Raises Refused for its own failures, else as Host.run does."""
        changed = " ".join((*self._overrides(), *settings))
        override = ("--config", changed) if changed else ()
        argv = (*self._prefix, "lvm", command, *override, *words)
        result = self._host.run(*argv, ok=(0, INVALID, REFUSED), timeout=self._limit)
        if result.status == INVALID:
            raise InvalidArgument(f"{command} on this node does not take what was asked for: {result.stderr.strip()}")
        if result.status == REFUSED:
            raise Refused(command, result)
        return result

    def _overrides(self) -> tuple[str, ...]:
        """Return the settings that differ from lvm.conf: in the host's namespaces none."""
        if self._settings is None:
            own = self._config.namespace == "own"
            udev = self._config.udev == "yes" or (self._config.udev == "auto" and (not own or _udev()))
            self._settings = (
                *(("activation/monitoring=0",) if own else ()),  # a container is no place for dmeventd
                *(() if udev else ("activation/udev_sync=0", "activation/udev_rules=0")),
            )
        return self._settings


def _udev() -> bool:
    """Whether udev is there and hears us: it answers through semaphores of the host's IPC namespace."""
    return UDEV.exists() and IPC.stat().st_ino == FIRST_IPC


class _LvRow(msgspec.Struct, kw_only=True):
    lv_name: str
    vg_uuid: str = ""
    lv_uuid: str = ""
    lv_size: int = 0
    lv_tags: str = ""
    lv_layout: str = ""
    lv_role: str = ""
    origin: str = ""
    pool_lv: str = ""
    lv_active: str = ""
    lv_device_open: str = ""
    lv_suspended: str = ""
    lv_snapshot_invalid: str = ""
    lv_health_status: str = ""
    data_percent: str = ""
    metadata_percent: str = ""
    sync_percent: str = ""

    def value(self, group: str, *, zeroing: bool = False) -> LogicalVolume:
        return LogicalVolume(
            name=self.lv_name,
            uuid="LVM-" + f"{group}{self.lv_uuid}".replace("-", ""),
            size=self.lv_size,
            tags=frozenset(filter(None, self.lv_tags.split(","))),
            layout=frozenset(self.lv_layout.split(",")),
            role=frozenset(self.lv_role.split(",")),
            origin=self.origin,
            pool=self.pool_lv,
            active=bool(self.lv_active),
            open=self.lv_device_open == "1",
            suspended=self.lv_suspended == "1",
            invalid=self.lv_snapshot_invalid == "1",
            health=self.lv_health_status,
            data_percent=_percent(self.data_percent),
            metadata_percent=_percent(self.metadata_percent),
            synced_percent=_percent(self.sync_percent),
            zeroing=zeroing,
        )


class _SegRow(msgspec.Struct, kw_only=True):
    lv_name: str
    zero: str = ""
    seg_pe_ranges: str = ""


class _VgRow(msgspec.Struct, kw_only=True):
    vg_name: str
    vg_uuid: str
    vg_extent_size: int
    vg_extent_count: int
    vg_free_count: int
    vg_missing_pv_count: int
    vg_mda_free: int

    def value(self) -> Group:
        return Group(
            name=self.vg_name,
            extent_size=self.vg_extent_size,
            extents=self.vg_extent_count,
            free=self.vg_free_count,
            missing=self.vg_missing_pv_count,
            metadata_free=self.vg_mda_free,
        )


class _PvRow(msgspec.Struct, kw_only=True):
    pv_name: str
    pv_pe_count: int
    pv_pe_alloc_count: int
    pv_missing: str
    pv_allocatable: str

    def value(self) -> PhysicalVolume:
        return PhysicalVolume(
            name=self.pv_name,
            extents=self.pv_pe_count,
            free=self.pv_pe_count - self.pv_pe_alloc_count,
            missing=self.pv_missing == "1",
            allocatable=self.pv_allocatable == "1",
        )


class _Sections(msgspec.Struct):
    vg: list[_VgRow] = msgspec.field(default_factory=list)
    pv: list[_PvRow] = msgspec.field(default_factory=list)
    lv: list[_LvRow] = msgspec.field(default_factory=list)
    seg: list[_SegRow] = msgspec.field(default_factory=list)


class _Answer(msgspec.Struct):
    report: list[_Sections]


def _percent(text: str) -> float | None:
    return float(text) if text else None
