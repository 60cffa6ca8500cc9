"""The dry run for `csi-multi explain`: lvm commands that only read are run, and the others are reported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from csi_multi.contract import CommandPurpose, DryRunHost, DryRunReport, Host, Result, Unpredictable

from .config import Config

PURPOSES = {
    "fullreport": CommandPurpose(
        read_only=True, why="reads the extent size, the free space, and the sizes of the volumes in the thin pool"
    ),
    "lvs": CommandPurpose(read_only=True, why="reads whether it exists, and who owns it"),
    "lvcreate": CommandPurpose(
        why="creates it, inactive, with its stamp as tags; one command, so it cannot remain incomplete"
    ),
    "lvextend": CommandPurpose(why="grows it to the requested size"),
    "lvconvert": CommandPurpose(why="adds integrity, after the creation because some kernels hang otherwise"),
    "lvchange": CommandPurpose(why="activates or deactivates it, or updates the tags that record its state"),
    "lvrename": CommandPurpose(why="renames it, because the driver finds its volumes by name; the data is unchanged"),
    "lvremove": CommandPurpose(why="removes what an earlier attempt left"),
}
EXTENT_SIZE = re.compile(r'"vg_extent_size" *: *"([0-9]+)"')
NAME = re.compile(r'lv_name="([^"]+)"')
EXTENT = 4 * 2**20  # bytes, LVM's own default
DISKS = 70  # more than any layout needs
EXTENTS = 2**26  # of each disk: enough for any volume
POOL = 2**60  # bytes


class LvmDryRunHost(DryRunHost):
    """A host that runs the lvm commands that only read, and reports the others without running them."""

    def __init__(self, host: Host, report: DryRunReport, config: Config) -> None:
        super().__init__(host, report, self._purpose, self._assumed_output)
        self._dry_run = report
        self._config = config
        self._extent_size = 0

    def run(self, *argv: str, **more: Any) -> Result:
        result = super().run(*argv, **more)
        if "fullreport" in argv and (found := EXTENT_SIZE.search(result.stdout)):
            self._extent_size = int(found[1])
        return result

    def _purpose(self, argv: Sequence[str]) -> CommandPurpose | None:
        command = argv[argv.index("lvm") + 1] if "lvm" in argv[:-1] else ""
        purpose = PURPOSES.get(command)
        if purpose and command == "lvcreate" and "-l" in argv and argv[argv.index("-l") + 1].isdecimal():
            extents = argv[argv.index("-l") + 1]
            return CommandPurpose(
                why=f"{purpose.why}; {extents} extents of {self._extent_size} bytes, in whole stripes"
            )
        return purpose

    def _assumed_output(self, argv: Sequence[str]) -> str | None:
        """Return the assumed output of a reading command in an offline dry run; None: run the command.

        Raises Unpredictable for a command that reads a volume which the dry run did not create.
        """
        if "lvs" in argv:
            steps = self._dry_run.steps
            not_created = {step.words[step.words.index("-n") + 1] for step in steps if "-n" in step.words}
            if read := [name for name in NAME.findall(" ".join(argv)) if name in not_created]:
                raise Unpredictable(
                    f"the next steps depend on {read[0]}, which a dry run does not create: a larger copy grows to its "
                    "size (lvextend), a copy that cannot share blocks is copied byte by byte, and then its tag "
                    "csi.todo is removed (lvchange)"
                )
        if not self._dry_run.offline:
            return None
        if "fullreport" not in argv:
            raise Unpredictable(
                "the contents of the volume group are not known in an offline dry run; run it without --offline"
            )
        self._dry_run.record_assumption(
            f"the volume group has extents of {EXTENT} bytes, enough disks and enough free space"
        )
        return assumed_report(self._config)


def assumed_report(config: Config) -> str:
    """Return the report of a group with space for any volume, as lvm prints it."""
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
