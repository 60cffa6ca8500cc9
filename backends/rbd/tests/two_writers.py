"""A client that writes increasing numbers into two images in turn, each durable before the next: for tests of groups.

For the distribution's Python, to which Ceph's bindings belong. It ends when its input does.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ceph import Cluster

PYTHON = "/usr/bin/python3"
BLOCK = 4096
NUMBER = 8  # bytes


@contextmanager
def two_writers(cluster: Cluster, namespace: str, first: str, second: str) -> Iterator[None]:
    """Let a client write while the block runs; it has written something before, and none of its writes failed."""
    conf = str(cluster.directory / "ceph.conf")
    command = (PYTHON, "-I", str(Path(__file__)), conf, cluster.pool, namespace, first, second)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "writing\n"
        yield
    finally:
        _, errors = process.communicate("\n")
    assert process.returncode == 0, errors


def number(data: bytes) -> int:
    return int.from_bytes(data[:NUMBER], "little")


def main(conf: str, pool: str, namespace: str, *images: str) -> None:
    import rados
    import rbd

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(1), ended.set()), daemon=True).start()
    with rados.Rados(conffile=conf, conf={"rbd_cache": "false"}) as cluster:
        io = cluster.open_ioctx(pool)
        io.set_namespace(namespace)
        first, second = (rbd.Image(io, one) for one in images)
        _write((first, second), ended)
        first.close()
        second.close()


def _write(images: tuple[Any, Any], ended: threading.Event) -> None:
    """Write each number to the beginning, and to a place of its own."""
    count = 0
    while not ended.is_set():
        count += 1
        data = count.to_bytes(NUMBER, "little") * (BLOCK // NUMBER)
        for image in images:
            image.write(data, 0)
            image.write(data, BLOCK * (1 + count * 37 % (image.size() // BLOCK - 1)))
            image.flush()
        if count == 1:
            print("writing", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
