"""Copy to the members of a group what was written between their own snapshots and the group's.

A program of its own, for the distribution's Python, to which Ceph's bindings belong: no command of Ceph 16 reads the
snapshot that a group has of an image, and the bindings do (docs/decisions/rbd-groups.md).

    python3 -I group_program.py OPTIONS-OF-CEPH copy JOB

JOB is a file with JSON: pool, namespace, group, snapshot, and members, each with the names of its source, of the
source's own snapshot (since), and of the target, which is a clone of that. It can be repeated. The exit status is an
errno, as that of rbd.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

CHUNK = 4 << 20  # bytes that are read at once
OF_A_GROUP = 1  # the namespace of a snapshot that belongs to a group's (rbd_snap_namespace_type_t)


class Refused(Exception):
    """What stands in the way, with an errno."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.errno = number


def main(words: list[str]) -> int:
    try:
        import rados
        import rbd
    except ImportError as error:
        return _failed(errno.ENOPKG, f"{sys.executable} has no bindings of Ceph: {error}")
    options, job = words[:-2], words[-1]
    try:
        cluster = _cluster(rados, options)
    except rados.Error as error:
        return _failed(error.errno or errno.EIO, f"couldn't connect to the cluster: {error}")
    try:
        _copy_all(rbd, cluster, json.loads(Path(job).read_text(encoding="utf-8")))
    except (Refused, rados.Error, rbd.Error) as error:
        return _failed(getattr(error, "errno", 0) or errno.EIO, str(error))
    finally:
        cluster.shutdown()
    return 0


def _cluster(rados: Any, options: list[str]) -> Any:
    given = dict(zip(options[::2], options[1::2]))  # noqa: B905 - there may be an older Python
    cluster = rados.Rados(conffile=given.pop("--conf"), rados_id=given.pop("--id"), conf={"rbd_cache": "false"})
    cluster.conf_parse_argv([word for pair in given.items() for word in pair])
    cluster.connect()
    return cluster


def _copy_all(rbd: Any, cluster: Any, job: dict[str, Any]) -> None:
    pool = cluster.open_ioctx(job["pool"])
    pool.set_namespace(job["namespace"])
    for member in job["members"]:
        with rbd.Image(pool, member["source"], read_only=True) as source, rbd.Image(pool, member["target"]) as target:
            cut = _snapshot(source, job["group"], job["snapshot"])
            if cut is None:
                raise Refused(errno.ESTALE, f"image {member['source']} has no snapshot of group {job['group']}")
            source.set_snap_by_id(cut)
            if source.size() != target.size():
                raise Refused(errno.EAGAIN, f"image {member['source']} has grown meanwhile")
            _copy(source, target, member["since"])


def _snapshot(image: Any, group: str, snapshot: str) -> int | None:
    """Return the id of the snapshot that belongs to a group's snapshot."""
    for one in image.list_snaps():
        if one["namespace"] == OF_A_GROUP:
            owner = image.snap_get_group_namespace(one["id"])
            if (owner["name"], owner["snap_name"]) == (group, snapshot):
                return int(one["id"])
    return None


def _copy(source: Any, target: Any, since: str) -> None:
    """Write what differs from an earlier snapshot. What was discarded is written as zeros: it may be in the target."""
    extents: list[tuple[int, int]] = []
    source.diff_iterate(
        0, source.size(), since, lambda start, length, _: extents.append((start, length)), include_parent=False
    )
    for start, length in extents:
        for at in range(start, start + length, CHUNK):
            target.write(source.read(at, min(CHUNK, start + length - at)), at)
    target.flush()


def _failed(number: int, text: str) -> int:
    print(text, file=sys.stderr)
    return abs(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
