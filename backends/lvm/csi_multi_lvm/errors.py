"""lvm's refusals, translated to the contract's errors.

A failure is recognised by the exit status. The text that lvm prints, in the locale C, only shows which failure it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from csi_multi.contract import FailedPrecondition, InUse, ResourceExhausted, Result, StorageError, Unavailable

INVALID_ARGUMENTS = 3  # exit status for arguments that lvm does not accept: nothing was done
REFUSED = 5  # exit status of every other refusal and failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Texts of lvm that mean the same, the contract's error for them, and what helps."""

    texts: tuple[str, ...]
    error: type[StorageError]
    remedy: str


NAME_TAKEN = ("already exists",)
REFUSALS = (
    Refusal(
        texts=(
            "insufficient free space",
            "insufficient suitable",
            "insufficient free extents",
            "not enough",
            "no space",
            "reached threshold",
        ),
        error=ResourceExhausted,
        remedy="delete volumes or snapshots, or add disks to the group with vgextend",
    ),
    Refusal(
        texts=("while pvs are missing", "while physical volumes are missing", "is partial", "partial lv"),
        error=ResourceExhausted,
        remedy="bring the disks back, or see Recovery in docs/lvm.md",
    ),
    Refusal(
        texts=("can be resized only while inactive",),
        error=FailedPrecondition,
        remedy="LVM cannot grow a thick volume that has snapshots while it is in use: delete its snapshots, "
        "or stop the pods that use it",
    ),
    Refusal(
        texts=(" in use", "is used by another device", "open count"),
        error=InUse,
        remedy="unpublish and unstage the volume first",
    ),
)


class CommandRefused(Unavailable):
    """An lvm command exited with status 5. `text` is what it printed, in lower case, without warnings."""

    def __init__(self, command: str, result: Result) -> None:
        lines = [line.strip() for line in result.stderr.splitlines()]
        errors = [line for line in lines if line and not line.startswith("WARNING:")] or lines
        super().__init__(f"{command}: {'; '.join(errors) or 'failed without an error message'}")
        self.text = " ".join(errors).lower()

    def contains(self, texts: Iterable[str]) -> bool:
        return any(text in self.text for text in texts)

    def contract_error(self) -> StorageError:
        """Return the contract's error for this refusal when the command changed nothing, else the refusal itself."""
        for refusal in REFUSALS:
            if self.contains(refusal.texts):
                return refusal.error(f"{self}; {refusal.remedy}")
        return self
