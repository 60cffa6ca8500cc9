"""Thawing what processes left frozen that died: what writes to a frozen filesystem waits for ever."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ..contract.errors import Busy, StorageError
from ..contract.machine import Host
from ..contract.model import Blank, Device
from ..host import exclusive, sysfs
from ..host.mounts import MountPoint
from . import device_filesystems, freeze_notes, thaw

log = logging.getLogger(__name__)


def thaw_repeatedly(host: Host, interval: Callable[[], float]) -> None:
    """Thaw what dead processes left frozen, now and again after each interval in seconds, in a thread of its own."""

    def run() -> None:
        while True:
            try:
                thaw_all(host)
            except Exception:  # nothing else thaws them
                log.exception("what dead processes left frozen could not be thawed; it is tried again")
            time.sleep(interval())

    threading.Thread(target=run, name="thaw-leftovers", daemon=True).start()


def thaw_all(host: Host) -> None:
    """Thaw what dead processes left frozen. What a running process has frozen is locked, and stays frozen."""
    try:
        names = os.listdir(freeze_notes.NOTES)
    except OSError:  # nothing was ever frozen on this node, or this process has no access to its /dev
        return
    for number in names:
        try:
            _thaw_device(host, number)
        except (OSError, StorageError) as error:
            log.error("the filesystem of device %s may still be frozen: %s", number, error)
        except Exception:  # the others are thawed
            log.exception("the filesystem of device %s may still be frozen", number)


def _thaw_device(host: Host, number: str) -> None:
    with contextlib.ExitStack() as undo:
        try:
            note = undo.enter_context(freeze_notes.locked(number))
        except (Busy, FileNotFoundError):
            return
        if device := note.device():
            filesystems = device_filesystems.find(device)
            thaw_mounted(filesystems)
            if not filesystems and exclusive.is_held(device):
                _thaw_unmounted(host, device, number)
        note.remove()


def thaw_mounted(filesystems: Iterable[MountPoint]) -> None:
    """Thaw what a dead process left frozen of these. Raises Unavailable."""
    for mount in filesystems:
        with device_filesystems.opened(mount) as descriptor:
            if thaw.thaw(descriptor, mount.target):
                log.warning("a process that died had frozen the filesystem at %s; it is thawed", mount.target)


def _thaw_unmounted(host: Host, device: Path, number: str) -> None:
    proof = {"diskseq": sysfs.disk_sequence(number)}
    known = Device(path=device, number=number, proof=proof, blank=Blank.NEVER)
    with tempfile.TemporaryDirectory(prefix="csi-multi-thaw-") as directory:
        if thaw.thaw_unmounted(host, f"on {device}", known, Path(directory), "auto"):
            log.warning("a process that died had frozen the filesystem on %s, unmounted since; it is thawed", device)
