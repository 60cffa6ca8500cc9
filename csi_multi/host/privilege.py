"""The Linux capabilities of this process: a container may run as root without some of them."""

from __future__ import annotations

import enum
import re
from pathlib import Path

STATUS = Path("/proc/self/status")


class LinuxCapability(enum.IntEnum):
    """Linux capabilities by their bit (capabilities(7))."""

    CAP_SYS_ADMIN = 21  # mount
    CAP_SYS_RESOURCE = 24  # grow a mounted ext4


def held(*wanted: LinuxCapability) -> bool:
    """Whether this process has all of these capabilities in effect."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", STATUS.read_text(), re.MULTILINE)
    bits = int(effective[1], 16) if effective else 0
    return all(bits >> bit & 1 for bit in wanted)
