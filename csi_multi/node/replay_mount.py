"""A program that mounts a filesystem and unmounts it, so that the kernel replays the journal.

usage: python -m csi_multi.node.replay_mount TYPE DEVICE [OPTION...]

The mount is detached, in no mount table: nobody can write to it, and it ends with the process. A mount namespace would
do the same, but it copies all mounts of the node, and keeps every volume that is unmounted meanwhile in use.
"""

from __future__ import annotations

import os
import sys

from ..host import mount_calls

REFUSED = 32  # as mount(8)


def main(fs_type: str, device: str, *options: str) -> int:
    try:
        os.close(mount_calls.mount_detached(fs_type, device, options))
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
