"""The figures that the repository keeps: for each case and each peer those of the last run with `--keep`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).with_name("kept.json")
Measured = dict[str, Any]  # of a case: "about" (the machine, the versions), "other" (the counterpart), "rows"


def load(file: Path | None = None) -> dict[str, Measured]:
    """Return what was kept, by the name of the case."""
    file = file or FILE
    kept: dict[str, Measured] = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
    return kept


def keep(measured: Mapping[str, Measured], file: Path | None = None) -> None:
    """Replace the figures of these cases; the others stay."""
    file = file or FILE
    text = msgspec.json.encode({**load(file), **measured}, order="deterministic")
    file.write_bytes(msgspec.json.format(text, indent=1) + b"\n")
