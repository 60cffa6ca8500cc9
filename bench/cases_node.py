"""Mounting and unmounting a new volume, compared with a shell script that runs the same commands."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from csi_multi.host.command import LocalHost, start
from csi_multi.node import kernel_features
from csi_multi.node.filesystem import BY_NAME
from csi_multi.node.mkfs_options import FilesystemOptions
from csi_multi.rpc.client import Client

from .processes import MIB, Unmeasurable, client, driver
from .table import Row, Target, alone, compared

SIZE = 1024 * MIB
CAPABILITY = {"mount": {"fs_type": "ext4"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
TARGET = Target(limit=1.2)
OTHERS = 50
SAME = Target(limit=1.5)
SCRIPT = """\
set -e
device=$(losetup --find --show --direct-io=on --sector-size=512 -- "$1")
{mkfs} "$device"
mount -t ext4 -o rw "$device" "$2"
mount --bind "$2" "$3"
umount "$3"
umount "$2"
losetup --detach "$device"
"""


def node(directory: Path, *, quick: bool) -> list[Row]:
    """Stage, publish, unpublish, unstage; and the controller's RPCs around them in absolute times."""
    script = directory / "bare.sh"
    script.write_text(
        SCRIPT.format(
            mkfs=shlex.join(
                BY_NAME["ext4"].mkfs_command(LocalHost(), FilesystemOptions(), kernel_features.running_kernel())
            )
        )
    )
    took: dict[str, list[float]] = {}
    beside: dict[str, list[float]] = {}
    rounds = 6 if quick else 40
    with driver(directory) as server, client(server) as caller:
        run = Run(directory, caller, took)
        for round_ in range(-2, rounds):
            if round_ == 0:
                took.clear()  # the rounds before are not measured
            sides = (run.ours, run.bare) if round_ % 2 == 0 else (run.bare, run.ours)
            for side in sides:
                side(round_)
        with run.staged(OTHERS):
            run.took = beside
            for round_ in range(rounds):
                run.ours(round_)
    rows = [
        compared("stage..unstage, fresh ext4", "ms", _cycles(took), took["bare"], target=TARGET),
        compared(f"stage..unstage, beside {OTHERS} staged to none", "ms", _cycles(beside), _cycles(took), target=SAME),
    ]
    return rows + [alone(name, "ms", took[name]) for name in took if name != "bare"]


def _cycles(took: dict[str, list[float]]) -> list[float]:
    steps = ("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
    return [sum(parts) for parts in zip(*(took[step] for step in steps), strict=True)]


class Run:
    """Run both sides of one round. All times go into `took`, in milliseconds."""

    def __init__(self, directory: Path, caller: Client, took: dict[str, list[float]]) -> None:
        self._directory = directory
        self._caller = caller
        self.took = took
        self._staging, self._target = directory / "staging", directory / "target"
        self._bare_staging, self._bare_target = directory / "bare-staging", directory / "bare-target"
        for path in (self._staging, self._bare_staging, self._bare_target):
            path.mkdir()

    def ours(self, round_: int) -> None:
        name = f"bench-{round_}"
        volume = self._rpc(
            "CreateVolume", name=name, capacity_range={"required_bytes": SIZE}, volume_capabilities=[CAPABILITY],
            parameters={"backend": "scratch"},
        ).volume.volume_id  # fmt: skip
        staged = {"volume_id": volume, "staging_target_path": str(self._staging)}
        shown = {"volume_id": volume, "target_path": str(self._target)}
        self._rpc("NodeStageVolume", **staged, volume_capability=CAPABILITY)
        self._rpc("NodePublishVolume", **staged, target_path=str(self._target), volume_capability=CAPABILITY)
        self._rpc("NodeUnpublishVolume", **shown)
        self._rpc("NodeUnstageVolume", **staged)
        snapshot = self._rpc("CreateSnapshot", source_volume_id=volume, name=name).snapshot.snapshot_id
        self._rpc("DeleteSnapshot", snapshot_id=snapshot)
        self._rpc("DeleteVolume", volume_id=volume)

    @contextmanager
    def staged(self, count: int) -> Iterator[None]:
        """Have so many other volumes staged during the block."""
        volumes = []
        for number in range(count):
            path = self._directory / f"other-{number}"
            path.mkdir()
            made = self._caller.CreateVolume(
                name=f"other-{number}", capacity_range={"required_bytes": SIZE}, volume_capabilities=[CAPABILITY],
                parameters={"backend": "scratch"},
            )  # fmt: skip
            volumes.append({"volume_id": made.volume.volume_id, "staging_target_path": str(path)})
            self._caller.NodeStageVolume(**volumes[-1], volume_capability=CAPABILITY)
        yield
        for staged in volumes:
            self._caller.NodeUnstageVolume(**staged)
            self._caller.DeleteVolume(volume_id=staged["volume_id"])

    def bare(self, round_: int) -> None:
        image = self._directory / f"bare-{round_}"
        with image.open("wb") as file:
            file.truncate(SIZE)
            os.fsync(file.fileno())
        self._timed("bare", lambda: self._script(image))
        image.unlink()

    def _script(self, image: Path) -> None:
        words = ("sh", self._directory / "bare.sh", image, self._bare_staging, self._bare_target)
        log = self._directory / "bare.log"
        with log.open("wb") as stderr:
            process = start(*map(str, words), environment={}, stderr=stderr)
            try:
                status = process.wait()
            finally:
                process.wait(timeout=60)  # also after Ctrl-C: the script has then undone its work
        if status:
            raise Unmeasurable(f"the bare script exited with status {status}: {log.read_text(errors='replace')}")

    def _rpc(self, rpc: str, /, **fields: Any) -> Any:
        return self._timed(rpc, lambda: getattr(self._caller, rpc)(**fields))

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        answer = call()
        self.took.setdefault(name, []).append((time.perf_counter() - began) * 1000)
        return answer
