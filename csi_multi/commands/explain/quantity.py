"""Sizes as Kubernetes writes them."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from ...config.document import ConfigError

UNITS = {unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)} | {
    unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E"))
}
_SHAPE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")


def parse(text: str) -> int:
    """Return the bytes, rounded up. Raises ConfigError."""
    found = _SHAPE.fullmatch(text)
    if not found or found[2] not in UNITS:
        raise ConfigError(f"--size: {text!r} is not a quantity such as 10Gi, 500M or a number of bytes")
    return int((Decimal(found[1]) * UNITS[found[2]]).to_integral_value(ROUND_CEILING))


def format_size(size: int) -> str:
    """Return a size in its largest binary unit and in bytes: 10 GiB (10737418240 bytes)."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size >= UNITS[unit]:
            number = f"{size / UNITS[unit]:.3f}".rstrip("0").rstrip(".")
            about = "" if size * 1000 % UNITS[unit] == 0 else "about "
            return f"{about}{number} {unit}B ({size} bytes)"
    return f"{size} bytes"
