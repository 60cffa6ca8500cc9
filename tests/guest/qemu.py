"""A guest in QEMU: another machine, emulated, with devices and a network of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guest import Task
from image import Kernel, initramfs

# In an emulated guest, mitigations take more than half of the time: every system call flushes the emulator's TLB.
COMMAND_LINE = "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off"
# Emulated processors wait for each other at every change of a page table: with other load on the machine, two
# processors take three times as long as one for a task with many short processes.
CPUS = 1
# QEMU's user network: no privileges, no bridge, and only this machine's loopback can reach the guest.
NETWORK = ("-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network,romfile=")


@dataclass(frozen=True)
class Qemu:
    """QEMU with a stock kernel, whose initramfs runs init.sh."""

    kernel: Kernel
    words: tuple[str, ...] = ()  # further ones for qemu

    @contextmanager
    def start(self, task: Task, control: Path) -> Iterator[subprocess.Popen[bytes]]:
        initramfs(self.kernel, task.modules, control / "initramfs")
        escaped = str(control).replace(",", ",,")
        share = "local,security_model=none,multidevs=remap"
        # fmt: off
        words = (
            "setpriv", "--pdeathsig", "KILL", "--",
            "qemu-system-x86_64", "-M", "q35", "-accel", os.environ.get("GUEST_ACCEL", "tcg"), "-cpu", "max",
            "-smp", str(CPUS), "-m", task.memory, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", str(self.kernel.image), "-initrd", str(control / "initramfs"),
            "-append", COMMAND_LINE, "-serial", f"file:{control / 'console'}",
            "-virtfs", f"{share},path=/,mount_tag=host",
            "-virtfs", f"{share},path={escaped},mount_tag=control",
            "-drive", f"file={escaped}/work,format=raw,if=virtio,cache=unsafe",
            "-device", "virtio-serial", "-chardev", "stdio,id=terminal,signal=off",
            "-device", "virtconsole,chardev=terminal", *self.words,
        )
        # fmt: on
        yield subprocess.Popen(words, stdin=subprocess.DEVNULL if task.command else None)
