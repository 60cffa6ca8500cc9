"""Loop devices of somebody else whose files are gone, as killed programs and removed containers leave them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from csi_multi.contract import StorageError
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost

from .assertions import CheckSkipped
from .storage import MIB

LAZY = "--lazy"


class DeadDevice(NamedTuple):
    what: str  # was done to its file
    backing: str  # its backing file, as the kernel shows it


@contextmanager
def dead_devices(name: str) -> Iterator[dict[Path, DeadDevice]]:
    """Attach devices to files of this name, and take these away; yield what was done to each. Needs root.

    Raises CheckSkipped where this machine has no loop devices.
    """
    host = LocalHost()
    found: dict[Path, DeadDevice] = {}
    with ExitStack() as undo:
        root = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="csi-multi-kit-")))

        def attach(directory: Path, what: str) -> Path:
            directory.mkdir(exist_ok=True)
            file = directory / name
            with file.open("wb") as new:
                new.truncate(MIB)
            device = loopdev.attach(host, file, direct_io=False)
            found[device] = DeadDevice(what, loopdev.bound_devices().get(device, ""))
            undo.callback(lambda: _detach(host, device, found[device]))
            return file

        try:
            attach(root / "file", "its file was removed").unlink()
            shutil.rmtree(attach(root / "directory", "its directory was removed").parent)
            os.truncate(attach(root / "bytes", "its file is empty, so that every read fails"), 0)
            disk = root / "disk"
            disk.mkdir()
            host.run("mount", "-t", "tmpfs", "-o", "size=4M", "csi-multi-kit", str(disk))
            try:
                attach(disk, "its disk was unmounted")
            finally:
                host.run("umount", LAZY, str(disk))
        except StorageError as error:
            raise CheckSkipped(f"loop devices cannot be attached here: {error}") from None
        shown = loopdev.bound_devices()  # another path than before, of a file that is gone
        found |= {device: one._replace(backing=shown.get(device, one.backing)) for device, one in found.items()}
        yield found


def are_gone(devices: dict[Path, DeadDevice]) -> dict[Path, DeadDevice]:
    """Return those that are not bound any more, or to something else: the number of a free device is given again."""
    shown = loopdev.bound_devices()
    return {device: one for device, one in devices.items() if not _is_shown(shown.get(device, ""), one)}


def _is_shown(backing: str, one: DeadDevice) -> bool:
    return backing.removesuffix(loopdev.DELETED) == one.backing.removesuffix(loopdev.DELETED)


def _detach(host: LocalHost, device: Path, one: DeadDevice) -> None:
    if _is_shown(loopdev.bound_devices().get(device, ""), one):  # else the backend under test has detached it
        with suppress(StorageError):
            loopdev.detach(host, device)
