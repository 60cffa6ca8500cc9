"""What commands end with when something is in the way: `python -m backends.rbd.tests.status_cases` prints the page.

Each case is run on a real cluster (test_errors.py) in a namespace that has:

    there       an image with a snapshot `cut`, of which `clone` is a clone
    plain       an image with nothing
    open        an image that another client has open
    old, kept   images in the trash; `kept` has a clone
"""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi_rbd import errors
from csi_multi_rbd.errors import STATUSES

from csi_multi.contract import StorageError

NONE = "no-such-thing"
VERBS = (  # about an image
    "info {}",
    "image-meta list {}",
    "image-meta set {} key value",
    "status {}",
    "du {}",
    "snap ls {}",
    "children {}",
    "snap create {}@new",
    "snap rm {}@new",
    "resize {} --size 2G",
    "flatten {}",
    "trash mv {}",
    "rm {}",
)
POOL_VERBS = ("ls {}", "ls {} --long", "trash ls {}", "import {{file}} {}/new", "info {}/there")


@dataclass(frozen=True, slots=True)
class Case:
    """`{here}` is the pool and namespace; `as_user` one of those the test has made, "" the driver's."""

    command: str
    situation: str
    status: int
    kind: str = ""  # name of the class, "" for success
    as_user: str = ""


CASES = (
    *(Case(verb.format("{here}/" + NONE), "no such image", 2, "Absent") for verb in VERBS),
    Case(f"snap rm {{here}}/there@{NONE}", "no such snapshot", 2, "Absent"),
    Case(f"clone {{here}}/there@{NONE} {{here}}/new", "no such snapshot", 2, "Absent"),
    Case(f"clone {{here}}/{NONE}@cut {{here}}/new", "no such image", 2, "Absent"),
    Case(f"trash rm {{here}}/{NONE}", "no such entry", 2, "Absent"),
    Case(f"import {{file}} {{here}}/new --data-pool {NONE}", "no such data pool", 2, "Absent"),
    *(Case(verb.format(NONE), "no such pool", 2, "Absent") for verb in POOL_VERBS),
    *(Case(verb.format("{pool}/" + NONE), "no such namespace", 2, "Absent") for verb in POOL_VERBS),
    Case("import {file} {here}/there", "an image has the name", 17, "Exists"),
    Case("clone {here}/there@cut {here}/plain", "an image has the name", 17, "Exists"),
    Case("snap create {here}/there@cut", "a snapshot has the name", 17, "Exists"),
    Case("rm {here}/there", "it has a snapshot", 39, "Linked"),
    Case("trash rm {here}/{kept}", "a clone needs it", 39, "Linked"),
    Case("rm {here}/open", "another client has it open", 16, "Watched"),
    Case("trash mv {here}/open", "another client has it open", 0),
    Case("trash rm {here}/{open}", "another client has it open", 16, "Watched"),
    Case("resize {here}/plain --size 1M", "it has that size", 22, "Refused"),
    Case("resize {here}/there --size 1M", "it is larger", 22, "Refused"),
    Case("flatten {here}/plain", "it has no parent", 22, "Refused"),
    Case("import {file} {here}/new --stripe-unit 3000 --stripe-count 2", "striping that does not fit", 22, "Refused"),
    Case("ls {here} --such-option", "no such option", 1, "Refused"),
    Case("ls {here}", "the user has no rights on the pool", 1, "PermissionDenied", "stranger"),
    Case("import {file} {here}/new", "the user has no rights on the pool", 1, "PermissionDenied", "stranger"),
    Case("ls {here}", "the key is wrong", 13, "Unreachable", "liar"),
    Case("ls {here}", "the key is none", 22, "Unreachable", "garbled"),
    Case("ls {here}", "no monitor answers", 110, "Unreachable", "lost"),
    Case("ls {here}", "no monitor has that name", 22, "Unreachable", "astray"),
    Case("ceph status", "no monitor answers", 1, "Unreachable", "lost"),
    Case("ceph status", "the key is wrong", 13, "Unreachable", "liar"),
    Case(
        "ceph rbd task add flatten {here}/clone",
        "the user has no rights on the manager",
        13,
        "PermissionDenied",
        "stranger",
    ),
    Case(f"ceph rbd task add flatten {{here}}/{NONE}", "no such image", 2, "Absent"),
)
# Seen, and tested where they belong: faults of the cluster, and devices.
ELSEWHERE = (
    Case("all that write; in a namespace all", "the pool is full, or at its quota", 110, "Full"),
    Case("`rbd rm`", "the pool is full, or at its quota: the image is still listed", 2, "Absent"),
    Case("all", "the key is wrong, and the monitors have no v1 address", 110, "Unreachable"),
    Case("all", "an OSD does not answer", 110, "Slow"),
    Case("`ceph rbd task add`", "the manager does not answer", 110, "Slow"),
    Case("`rbd bench`", "the client is put on the blocklist meanwhile", 108, "Blocked"),
    Case("`rbd resize`, `snap create`, `flatten`", "a kernel has mapped it with --exclusive", 30, "Locked"),
    Case("`rbd device map`", "another client has it exclusively", 30, "Locked"),
    Case("`rbd device map`", "the kernel lacks one of its features", 6, "Refused"),
    Case("`rbd device map`", "no such image, no kernel module, or ms_mode does not fit", 2, "Absent"),
    Case("`rbd device map`", "this machine's client is on the blocklist", 108, "Blocked"),
    Case("`rbd device unmap`", "the device is in use", 16, "InUse"),
    Case("`rbd device unmap`", "it is no block device", 22, "Refused"),
)
BEFORE = """# Commands of rbd and ceph, and what they end with

The rbd backend runs `rbd`, `ceph` and `rbd-nbd`, and goes by their exit statuses, which are mostly those of errno.
All of this was seen with Ceph 16.2.15. This page is generated from the table in `csi_multi_rbd/errors.py`, and from
the cases that `backends/rbd/tests/test_errors.py` runs on a real cluster.

## Status to error

The first line that fits counts. What fits none is `Refused`, which is `Unavailable`: something may have been made, so
that the orchestrator comes back, and the driver looks.

"""
SURE = """
Status 2 says that something does not exist, and not what. So the driver lists the images (or the snapshots, or the
trash) before it says `Missing`. A listing fails when the pool or the namespace is gone, so that what is in it is not
taken for gone. Everything else stays `Absent`, which is `Unavailable`.

Status 110 after the monitors were reached is what a full pool looks like: operations that write wait until there is
room, and in a namespace rbd writes to read. So the driver then asks `ceph osd pool ls detail`, and answers `Full`,
which is `ResourceExhausted`, when the pool is marked so.

## Command by command

Run by a test, in this order (`clone` with `--rbd-default-clone-format 2`, `import` with `--export-format 2`):

"""


def page() -> str:
    lines = ["| status | said | class | is | meaning |", "| ---: | --- | --- | --- | --- |"]
    lines += [
        f"| {status} | {f'`{text}`' if text else ''} | `{kind.__name__}` | {_base(kind)} | {meaning} |"
        for status, text, kind, meaning in STATUSES
    ]
    return (
        BEFORE
        + "\n".join(lines)
        + "\n"
        + SURE
        + _table(CASES)
        + "\nSeen elsewhere:\n\n"
        + _table(ELSEWHERE, code=False)
    )


def _table(cases: tuple[Case, ...], *, code: bool = True) -> str:
    lines = ["| command | situation | status | class |", "| --- | --- | ---: | --- |"]
    for case in cases:
        program = "" if case.command.startswith("ceph ") or not code else "rbd "
        command = program + case.command.format(here="POOL/NS", pool="POOL", kept="ID", open="ID", file="FILE")
        shown = f"`{command}`" if code else command
        lines.append(f"| {shown} | {case.situation} | {case.status} | {f'`{case.kind}`' if case.kind else 'none'} |")
    return "\n".join(lines) + "\n"


def _base(kind: type[StorageError]) -> str:
    """Return the class of the contract that it is."""
    return next(base.__name__ for base in kind.__mro__ if base.__module__ == StorageError.__module__)


def named(kind: str) -> type[StorageError]:
    return getattr(errors, kind)  # type: ignore[no-any-return]


if __name__ == "__main__":
    print(page(), end="")
