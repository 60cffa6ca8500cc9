"""The dry run for `csi-multi explain`: the cluster is read, and nothing there is changed."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from csi_multi.contract import (
    CommandPurpose,
    DryRunReport,
    FailedPrecondition,
    Result,
    Unavailable,
    Unpredictable,
    VolumeRequest,
)
from csi_multi.host.command import Doubt

from .capacity import CapacityAccounting
from .command import CommandRunner
from .config import Config
from .connection import ID, KEY

PURPOSES = {
    "ceph df": CommandPurpose(
        read_only=True, why="how much space the pool has left; the driver reads it at its regular checks"
    ),
    "ceph osd": CommandPurpose(read_only=True, why="whether the pool is full, which makes commands slow"),
    "rbd info": CommandPurpose(read_only=True, why="size, features and parent of the image"),
    "rbd image-meta list": CommandPurpose(read_only=True, why="the owner of the image, and whether it is complete"),
    "rbd ls": CommandPurpose(read_only=True, why="confirms that the image does not exist"),
    "rbd snap ls": CommandPurpose(read_only=True, why="the snapshots of the image"),
    "rbd status": CommandPurpose(read_only=True, why="which clients have the image open"),
    "rbd du": CommandPurpose(read_only=True, why="whether the image holds data"),
    "rbd import": CommandPurpose(
        why="creates the image with its label and sets its size last: an interrupted one is recognized by its size"
    ),
    "rbd clone": CommandPurpose(why="creates the image, which shares its data with the snapshot"),
    "rbd snap create": CommandPurpose(why="holds the source's data of this moment"),
    "rbd snap rm": CommandPurpose(why="removes the snapshot; Ceph keeps its data for as long as the clone needs it"),
    "rbd resize": CommandPurpose(why="enlarges the image to the requested size"),
    "rbd image-meta set": CommandPurpose(why="writes the label, which makes the image a volume of the driver"),
    "rbd image-meta remove": CommandPurpose(why="removes the driver's label"),
    "rbd mv": CommandPurpose(why="renames the image, by which the driver finds its volume; the data does not change"),
}
VERB_WORDS = 2  # words of the longest verb
SECRET = {ID: "USER-OF-THE-SECRET", KEY: base64.b64encode(bytes(16)).decode()}  # stands for a secret that is not read


class DryRunRequests:
    """Prepares the requests of a dry run: checks the pool's capacity first, and gives them a key."""

    def __init__(self, report: DryRunReport) -> None:
        self._report = report

    def __call__(self, request: VolumeRequest, capacity: CapacityAccounting, config: Config) -> VolumeRequest:
        if request.source is None:
            self._check_capacity(request, capacity, config)
        return request if config.keyring else replace(request, secrets=SECRET)

    def _check_capacity(self, request: VolumeRequest, capacity: CapacityAccounting, config: Config) -> None:
        if self._report.offline:
            self._report.record_assumption("the pool exists and has enough space")
        elif config.keyring:
            parameters = request.parameters
            capacity.report((parameters and parameters.data_pool) or config.data_pool or config.pool)
        else:
            raise Unavailable(
                "the cluster's key comes with a request's secrets, which a dry run does not read; run it with --offline"
            )


class DryRunRunner(CommandRunner):
    """Runs commands that only look, and reports the others; without a key it runs none."""

    def __init__(self, report: DryRunReport, *, keyless: bool) -> None:
        super().__init__()
        self._report = report
        self._keyless = keyless

    def execute(self, program: str, *words: str, timeout: float, stdin: str = "", doubt: Doubt | None = None) -> Result:
        command, purpose = readable_command(program, words), PURPOSES.get(verb(program, words))
        if purpose is None:
            raise Unpredictable(f"{' '.join(command)} would be run; its result is not known in a dry run")
        if not purpose.read_only:
            self._report.record_change(*command, why=purpose.why)
            return Result(0, "", "")
        self._report.record_read(*command, why=purpose.why)
        if self._report.offline or self._keyless:
            raise Unpredictable("the contents of the pool are not known in a dry run that is offline or has no key")
        try:
            return super().execute(program, *words, timeout=timeout, stdin=stdin, doubt=doubt)
        except FailedPrecondition as error:  # the program is not installed on this machine
            raise Unavailable(str(error)) from None


class DryRunBackgroundRunner(CommandRunner):
    """Refuses commands in the background of a creation that does not happen."""

    def execute(self, program: str, *words: str, timeout: float, stdin: str = "", doubt: Doubt | None = None) -> Result:
        raise Unpredictable("this is done later, in the background")


def verb(program: str, words: Sequence[str]) -> str:
    """Return what a command does, in one or two words: `rbd snap create`. Options before it have a value each."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        rest = rest[1:] if "=" in rest[0] else rest[2:]
    longer = " ".join([program, *rest[:VERB_WORDS]])
    return longer if longer in PURPOSES else " ".join([program, *rest[:1]])


def readable_command(program: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return a command with a description in place of each file that exists in memory only."""
    shown = list(words)
    for index, word in enumerate(shown):
        if word.startswith("/proc/"):
            is_key = index and shown[index - 1] == "--keyfile"
            shown[index] = "(the key in the request's secrets)" if is_key else _describe(Path(word).read_bytes())
    return (program, *shown)


def _describe(image: bytes) -> str:
    """Describe the file of labels.empty_image: the size is at its end, and before that the label."""
    (size,) = struct.unpack("<Q", image[-9:-1])
    label = image[image.find(b"{") : image.rfind(b"}") + 1].decode(errors="replace")
    return f"(an empty image of {size} bytes, with image-meta csi-multi={label})"
