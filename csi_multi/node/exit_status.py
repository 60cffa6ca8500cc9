"""What the exit status of a command says about a volume's data: one table, from the programs' manual pages.

A status that is not in the table is no answer: the program was killed, had no memory, or could not open the device.
Such a command decides nothing, and the caller tries again (CommandFailed is Unavailable).
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping

from ..contract.machine import TIME_LIMIT, CommandFailed, Host, Result


class CommandOutcome(enum.Enum):
    DONE = "done"  # found, sound, corrected, made, mounted
    NOTHING = "nothing"  # blkid: no signature
    AMBIGUOUS = "ambiguous"  # blkid: signatures of several kinds
    DAMAGED = "damaged"  # not complete, or with errors that need a person
    REFUSED = "refused"  # mount: the kernel's answer, which its text explains; resize2fs: it does not grow this one


REPLAY_MOUNT = (sys.executable, "-I", "-m", "csi_multi.node.replay_mount")
_DAMAGED = CommandOutcome.DAMAGED
OUTCOMES: Mapping[tuple[str, ...], Mapping[int, CommandOutcome]] = {
    ("blkid",): {0: CommandOutcome.DONE, 2: CommandOutcome.NOTHING, 8: CommandOutcome.AMBIGUOUS},
    # A sum of bits. 1 and 2: errors were corrected, 4: errors are left, 8: it could not work.
    ("e2fsck",): {**dict.fromkeys(range(4), CommandOutcome.DONE), **dict.fromkeys(range(4, 8), _DAMAGED)},
    ("xfs_repair",): {0: CommandOutcome.DONE, 1: _DAMAGED, 2: _DAMAGED},  # 2: the log must be replayed
    ("btrfs", "check"): {0: CommandOutcome.DONE, 1: _DAMAGED},
    ("mkfs.ext4",): {0: CommandOutcome.DONE},
    ("mkfs.xfs",): {0: CommandOutcome.DONE},
    ("mkfs.btrfs",): {0: CommandOutcome.DONE},
    ("resize2fs",): {0: CommandOutcome.DONE, 1: CommandOutcome.REFUSED},
    ("mount",): {0: CommandOutcome.DONE, 32: CommandOutcome.REFUSED},
    REPLAY_MOUNT: {0: CommandOutcome.DONE, 32: CommandOutcome.REFUSED},
}


def run(host: Host, *argv: str, stdin: str | None = None, timeout: float = TIME_LIMIT) -> tuple[CommandOutcome, Result]:
    """Run one of the commands above. Raises CommandFailed, which is not final, when it gives no answer."""
    outcomes = next(found for program, found in OUTCOMES.items() if argv[: len(program)] == program)
    result = host.run(*argv, stdin=stdin, ok=tuple(outcomes), timeout=timeout)
    if outcomes[result.status] is CommandOutcome.NOTHING and result.stderr.strip():
        raise CommandFailed(argv, result)  # blkid could not open the device, which has the same status
    return outcomes[result.status], result
