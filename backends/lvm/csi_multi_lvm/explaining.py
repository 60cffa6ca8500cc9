"""What lvm's commands are for, and which of them only look: `csi-multi explain` runs those, and no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from csi_multi.contract import CommandPurpose, DryRunHost, DryRunReport, Host, Result, Unpredictable

from .config import Config

KNOWN = {
    "fullreport": CommandPurpose(
        looks=True, why="how large extents are, what is free, and what the thin pool has promised"
    ),
    "lvs": CommandPurpose(looks=True, why="whether it is there, and whose it is"),
    "lvcreate": CommandPurpose(
        why="makes it, inactive, with its stamp as tags: all in one command, so nothing half-made is left behind"
    ),
    "lvextend": CommandPurpose(why="gives it the size that was asked for"),
    "lvconvert": CommandPurpose(why="adds integrity, after the making because some kernels hang otherwise"),
    "lvchange": CommandPurpose(why="brings it, and the tags that say how far it is, to the next state"),
    "lvrename": CommandPurpose(
        why="changes the name, by which a volume of the driver's is found; the data stays as it is"
    ),
    "lvremove": CommandPurpose(why="takes away what an earlier try left"),
}
EXTENT_SIZE = re.compile(r'"vg_extent_size" *: *"([0-9]+)"')
NAMED = re.compile(r'lv_name="([^"]+)"')
EXTENT = 4 * 2**20  # bytes, LVM's own default
DISKS = 70  # more than any layout needs
EXTENTS = 2**26  # of each: there is room for everything
POOL = 2**60  # bytes


class Door(DryRunHost):
    """A host whose lvm commands only look. Others are noted."""

    def __init__(self, host: Host, report: DryRunReport, config: Config) -> None:
        super().__init__(host, report, self._known, self._answered)
        self._notes = report
        self._config = config
        self._extent = 0

    def run(self, *argv: str, **more: Any) -> Result:
        result = super().run(*argv, **more)
        if "fullreport" in argv and (found := EXTENT_SIZE.search(result.stdout)):
            self._extent = int(found[1])
        return result

    def _known(self, argv: Sequence[str]) -> CommandPurpose | None:
        verb = argv[argv.index("lvm") + 1] if "lvm" in argv[:-1] else ""
        known = KNOWN.get(verb)
        if known and verb == "lvcreate" and "-l" in argv and argv[argv.index("-l") + 1].isdecimal():
            extents = argv[argv.index("-l") + 1]
            return CommandPurpose(why=f"{known.why}; {extents} extents of {self._extent} bytes, in whole stripes")
        return known

    def _answered(self, argv: Sequence[str]) -> str | None:
        """Return what a look shows that cannot be done: at what is not made, or at a group that is not asked."""
        if "lvs" in argv:
            made = {step.words[step.words.index("-n") + 1] for step in self._notes.steps if "-n" in step.words}
            if unmade := [name for name in NAMED.findall(" ".join(argv)) if name in made]:
                raise Unpredictable(
                    f"{unmade[0]} is looked at once it is made; then a larger copy grows to its size (lvextend), a "
                    "copy that cannot share blocks is copied byte by byte, and its tag csi.todo goes (lvchange)"
                )
        if not self._notes.offline:
            return None
        if "fullreport" not in argv:
            raise Unpredictable("what is in the volume group is not known")
        self._notes.assume(
            f"extents of {EXTENT} bytes, enough disks, and room on them: all that decides about the size"
        )
        return _group(self._config)


def _group(config: Config) -> str:
    """Return a report of a group with room for everything, as lvm prints it."""
    total = str(DISKS * EXTENTS)
    group = {
        "vg_name": config.volume_group,
        "vg_uuid": "",
        "vg_extent_size": str(EXTENT),
        "vg_extent_count": total,
        "vg_free_count": total,
        "vg_missing_pv_count": "0",
        "vg_mda_free": str(2**40),
    }
    disk = {"pv_pe_count": str(EXTENTS), "pv_pe_alloc_count": "0", "pv_missing": "", "pv_allocatable": "1"}
    pool = {"lv_name": config.thin_pool, "lv_size": str(POOL), "lv_layout": "thin,pool", "data_percent": "0"}
    has_pool = bool(config.thin_pool)
    report = {
        "vg": [group],
        "pv": [{"pv_name": f"/dev/disk{number}", **disk} for number in range(DISKS)],
        "lv": [{**pool, "metadata_percent": "0"}] if has_pool else [],
        "seg": [{"lv_name": config.thin_pool, "zero": "1"}] if has_pool else [],
    }
    return msgspec.json.encode({"report": [report]}).decode()
