"""A backend whose creations look at the cluster and change nothing there: for `csi-multi explain`."""

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
    Setting,
    Unavailable,
    Unpredictable,
    Volume,
    VolumeRequest,
)

from .backend import RbdBackend
from .client import ID, KEY
from .config import Config
from .shell import Answer, Shell

KNOWN = {
    "ceph df": CommandPurpose(
        looks=True, why="how much the pool can be promised; the driver asks at its regular checks"
    ),
    "ceph osd": CommandPurpose(looks=True, why="whether a full pool is why it is slow"),
    "rbd info": CommandPurpose(looks=True, why="what the image is like"),
    "rbd image-meta list": CommandPurpose(looks=True, why="whose the image is, and whether it is finished"),
    "rbd ls": CommandPurpose(looks=True, why="whether it is really not there"),
    "rbd snap ls": CommandPurpose(looks=True, why="which snapshots it has"),
    "rbd status": CommandPurpose(looks=True, why="who has it open"),
    "rbd du": CommandPurpose(looks=True, why="whether it holds data"),
    "rbd import": CommandPurpose(
        why="makes the image with its label and gives it its size last: so it is complete, or not ours"
    ),
    "rbd clone": CommandPurpose(why="makes the image, which shares its data with the snapshot"),
    "rbd snap create": CommandPurpose(why="holds the source's data of this moment"),
    "rbd snap rm": CommandPurpose(
        why="takes the snapshot out of sight; Ceph keeps it for as long as the clone needs it"
    ),
    "rbd resize": CommandPurpose(why="gives it the size that was asked for"),
    "rbd image-meta set": CommandPurpose(why="writes the label: an image with a name and label of ours is a volume"),
    "rbd image-meta remove": CommandPurpose(why="takes the driver's own notes off"),
    "rbd mv": CommandPurpose(
        why="changes the name, by which a volume of the driver's is found; the data stays as it is"
    ),
}
LONGEST = 2  # words of a verb
SECRET = {ID: "USER-OF-THE-SECRET", KEY: base64.b64encode(bytes(16)).decode()}  # stands for what is not known here


class DryRunBackend(RbdBackend):
    def __init__(self, config: Config, setting: Setting, report: DryRunReport) -> None:
        super().__init__(config, setting, _Shell(report, secret=not config.keyring), _Nobody())
        self._report = report

    def create_volume(self, request: VolumeRequest) -> Volume:
        if self._report.offline:
            self._report.assume("the pool exists, with room for it")
        elif self.config.keyring:
            self._space.report((request.parameters and request.parameters.data_pool) or self._pool)
        else:
            raise Unavailable("the cluster's key comes with a request's secrets, which are not read here")
        return super().create_volume(self._with_key(request))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        return super().restore_volume(self._with_key(request))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        return super().clone_volume(self._with_key(request))

    def _with_key(self, request: VolumeRequest) -> VolumeRequest:
        return request if self.config.keyring else replace(request, secrets=SECRET)


class _Shell(Shell):
    """Commands that only look are run, others are noted; with a key that is not known none is run."""

    def __init__(self, report: DryRunReport, *, secret: bool) -> None:
        super().__init__()
        self._report = report
        self._secret = secret

    def ask(self, program: str, *words: str, timeout: float) -> Answer:
        command, known = shown(program, words), KNOWN.get(verb(program, words))
        if known is None:
            raise Unpredictable(f"{' '.join(command)} would be run; what becomes of it is not known here")
        if not known.looks:
            self._report.change(*command, why=known.why)
            return Answer(0, "", "")
        self._report.look(*command, why=known.why)
        if self._report.offline or self._secret:
            raise Unpredictable("what is in the pool is not known")
        try:
            return super().ask(program, *words, timeout=timeout)
        except FailedPrecondition as error:  # there is no such program here
            raise Unavailable(str(error)) from None


class _Nobody(Shell):
    """Nothing goes on in the background of a creation that is not done."""

    def ask(self, program: str, *words: str, timeout: float) -> Answer:
        raise Unpredictable("this is done later, in the background")


def verb(program: str, words: Sequence[str]) -> str:
    """Return what a command does, in one word or two: `rbd snap create`. Options before it have a value each."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        rest = rest[1:] if "=" in rest[0] else rest[2:]
    longer = " ".join([program, *rest[:LONGEST]])
    return longer if longer in KNOWN else " ".join([program, *rest[:1]])


def shown(program: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return a command without files that are in memory only: what is in them, or what they are."""
    told = list(words)
    for place, word in enumerate(told):
        if word.startswith("/proc/"):
            key = place and told[place - 1] == "--keyfile"
            told[place] = "(the key in the request's secrets)" if key else _image(Path(word).read_bytes())
    return (program, *told)


def _image(export: bytes) -> str:
    """Say what is in the file of export.empty: the size at its end, before that the label."""
    (size,) = struct.unpack("<Q", export[-9:-1])
    label = export[export.find(b"{") : export.rfind(b"}") + 1].decode(errors="replace")
    return f"(an empty image of {size} bytes, with image-meta csi-multi={label})"
