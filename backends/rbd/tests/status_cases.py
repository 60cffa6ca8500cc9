"""Exit statuses of commands that fail: `python -m backends.rbd.tests.status_cases` prints docs/rbd-commands.md.

Each case is run on a real cluster (test_errors.py) in a namespace that has:

    there       an image with a snapshot `cut`, of which `clone` is a clone
    plain       an image with nothing
    open        an image that another client has open
    old, kept   images in the trash; `kept` has a clone
    taken       a group of images with the image `grouped`; `other` is an empty group
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
    *(Case(verb.format("{here}/" + NONE), "no such image", 2, "ObjectNotFound") for verb in VERBS),
    Case(f"snap rm {{here}}/there@{NONE}", "no such snapshot", 2, "ObjectNotFound"),
    Case(f"clone {{here}}/there@{NONE} {{here}}/new", "no such snapshot", 2, "ObjectNotFound"),
    Case(f"clone {{here}}/{NONE}@cut {{here}}/new", "no such image", 2, "ObjectNotFound"),
    Case(f"trash rm {{here}}/{NONE}", "no such entry", 2, "ObjectNotFound"),
    Case(f"import {{file}} {{here}}/new --data-pool {NONE}", "no such data pool", 2, "ObjectNotFound"),
    *(Case(verb.format(NONE), "no such pool", 2, "ObjectNotFound") for verb in POOL_VERBS),
    *(Case(verb.format("{pool}/" + NONE), "no such namespace", 2, "ObjectNotFound") for verb in POOL_VERBS),
    Case("import {file} {here}/there", "an image has the name", 17, "NameTaken"),
    Case("clone {here}/there@cut {here}/plain", "an image has the name", 17, "NameTaken"),
    Case("snap create {here}/there@cut", "a snapshot has the name", 17, "NameTaken"),
    Case("rm {here}/there", "the image has a snapshot", 39, "HasDependents"),
    Case("trash rm {here}/{kept}", "a clone needs it", 39, "HasDependents"),
    Case("rm {here}/open", "another client has it open", 16, "ImageInUse"),
    Case("trash mv {here}/open", "another client has it open", 0),
    Case("trash rm {here}/{open}", "another client has it open", 16, "ImageInUse"),
    Case("group create {here}/taken", "a group has the name", 17, "NameTaken"),
    Case("group image add {here}/other {here}/grouped", "the image is in another group", 17, "NameTaken"),
    Case(f"group image add {{here}}/other {{here}}/{NONE}", "no such image", 2, "ObjectNotFound"),
    Case(f"group image add {{here}}/{NONE} {{here}}/grouped", "no such group", 2, "ObjectNotFound"),
    Case(f"group snap create {{here}}/{NONE}@cut", "no such group", 2, "ObjectNotFound"),
    Case(f"group rm {{here}}/{NONE}", "no such group", 0),
    Case("resize {here}/plain --size 1M", "the image has that size", 22, "CephCommandFailed"),
    Case("resize {here}/there --size 1M", "the image is larger", 22, "CephCommandFailed"),
    Case("flatten {here}/plain", "the image has no parent", 22, "CephCommandFailed"),
    Case("import {file} {here}/new --stripe-unit 3000 --stripe-count 2", "invalid striping", 22, "CephCommandFailed"),
    Case("ls {here} --such-option", "no such option", 1, "CephCommandFailed"),
    Case("ls {here}", "the user has no rights on the pool", 1, "PermissionDenied", "stranger"),
    Case("import {file} {here}/new", "the user has no rights on the pool", 1, "PermissionDenied", "stranger"),
    Case("ls {here}", "the key is wrong", 13, "ClusterUnreachable", "liar"),
    Case("ls {here}", "the key is not a key", 22, "ClusterUnreachable", "garbled"),
    Case("ls {here}", "no monitor answers", 110, "ClusterUnreachable", "lost"),
    Case("ls {here}", "no monitor has that name", 22, "ClusterUnreachable", "astray"),
    Case("ceph status", "no monitor answers", 1, "ClusterUnreachable", "lost"),
    Case("ceph status", "the key is wrong", 13, "ClusterUnreachable", "liar"),
    Case(
        "ceph rbd task add flatten {here}/clone",
        "the user has no caps for ceph-mgr",
        13,
        "PermissionDenied",
        "stranger",
    ),
    Case(f"ceph rbd task add flatten {{here}}/{NONE}", "no such image", 2, "ObjectNotFound"),
)
# Seen, and tested where they belong: faults of the cluster, and devices.
ELSEWHERE = (
    Case("every write; in a namespace every command", "the pool is full, or at its quota", 110, "PoolFull"),
    Case("`rbd rm`", "the pool is full, or at its quota: the image stays listed", 2, "ObjectNotFound"),
    Case("every command", "the key is wrong, and the monitors have no v1 address", 110, "ClusterUnreachable"),
    Case("every command", "an OSD does not answer", 110, "OperationTimedOut"),
    Case("`ceph rbd task add`", "ceph-mgr does not answer", 110, "OperationTimedOut"),
    Case("`rbd bench`", "the client is put on the blocklist while it runs", 108, "ClientBlocklisted"),
    Case("`rbd resize`, `snap create`, `flatten`", "a kernel mapped the image with --exclusive", 30, "ImageLocked"),
    Case("`rbd device map`", "another client has the exclusive lock", 30, "ImageLocked"),
    Case("`rbd device map`", "the kernel lacks a feature of the image", 6, "CephCommandFailed"),
    Case("`rbd device map`", "no such image, no kernel module, or wrong ms_mode", 2, "ObjectNotFound"),
    Case("`rbd device map`", "this machine's client is on the blocklist", 108, "ClientBlocklisted"),
    Case("`rbd device unmap`", "the device is in use", 16, "InUse"),
    Case("`rbd device unmap`", "it is not a block device", 22, "CephCommandFailed"),
)
BEFORE = """# Exit statuses of rbd and ceph

The rbd backend runs `rbd`, `ceph` and `rbd-nbd` and decides by their exit statuses, most of which are errno numbers.
Every status on this page was observed with Ceph 16.2.15. The page is generated from the table in
`csi_multi_rbd/errors.py` and from the cases that `backends/rbd/tests/test_errors.py` runs on a real cluster.

## From status to error

The first matching row applies. A status without a row becomes `CephCommandFailed`, which is Unavailable: the command
may have created something, so the orchestrator repeats the request and the driver looks what exists.

"""
SURE = """
Status 2 says that something does not exist, but not what. So the driver lists the images (or the snapshots, or the
trash) before it raises `ImageNotFound`. That listing fails if the pool or the namespace does not exist, so images in
it are never taken for deleted. Every other status 2 stays `ObjectNotFound`, which is Unavailable.

Status 110 after the monitors were reached can mean a full pool: writes wait until there is space, and in a namespace
rbd writes in order to read. So the driver then runs `ceph osd pool ls detail`, and raises `PoolFull`, which is
ResourceExhausted, if the pool is marked full. It does so too when a command has not ended after five seconds: one that
waits for a full pool is killed.

## Status by command

A test runs these in this order (`clone` with `--rbd-default-clone-format 2`, `import` with `--export-format 2`):

"""


def page() -> str:
    lines = ["| status | text | class | base | meaning |", "| ---: | --- | --- | --- | --- |"]
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
        + "\nObserved in other tests:\n\n"
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
