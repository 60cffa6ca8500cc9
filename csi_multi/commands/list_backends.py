"""`csi-multi backends`: lists the installed backend packages, and which of them can be used. Changes nothing.

loading/loader.py validates the packages as at the start of the driver; this module prints the result.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from importlib.metadata import EntryPoint, entry_points

import msgspec

from ..contract.backend import FEATURES, GROUP, TOOLS
from ..loading.loader import backend_classes, duplicate_providers

HEADER = ("KIND", "CLASS", "DISTRIBUTION", "CONTRACT", "FEATURES")


class InstalledBackend(msgspec.Struct, frozen=True, kw_only=True, rename={"cls": "class"}):
    """One entry point. Contract and features of a broken backend are unknown."""

    kind: str
    cls: str  # module:name
    distribution: str
    version: str
    contract: tuple[int, int] | None
    features: tuple[str, ...]
    problem: str  # why it cannot be used; "" if it can


def backends(*, as_json: bool) -> int:
    """Print the installed backends; return 1 when one of them cannot be used."""
    # A package that prints during its import must not corrupt the JSON output.
    with contextlib.redirect_stdout(sys.stderr):
        found = installed_backends()
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    elif found:
        print(table([HEADER, *(_row(one) for one in found)]))
    else:
        print("no backend is installed; each is a separate package: install one with pip")
    return 1 if any(one.problem for one in found) else 0


def installed_backends() -> list[InstalledBackend]:
    """Return every installed backend, sorted by kind; a kind of two packages has two entries."""
    points: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in entry_points(group=GROUP):
        points[point.name].append(point)
    broken = {kind: reason for kind in points if (reason := duplicate_providers(kind))}
    classes, unfit = backend_classes(points.keys() - broken.keys())
    broken |= unfit
    found = []
    for kind, providers in sorted(points.items()):
        cls = classes.get(kind)
        for point in providers:
            distribution, version = _distribution(point)
            one = InstalledBackend(
                kind=kind,
                cls=point.value,
                distribution=distribution,
                version=version,
                contract=cls.contract if cls else None,
                features=tuple(feature.__name__ for feature in (*FEATURES, *TOOLS) if cls and issubclass(cls, feature)),
                problem=broken.get(kind, ""),
            )
            found.append(one)
    return found


def table(rows: list[tuple[str, ...]]) -> str:
    """Return the rows as aligned columns with two spaces between them; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )


def _row(one: InstalledBackend) -> tuple[str, ...]:
    contract = ".".join(map(str, one.contract)) if one.contract else "-"
    last = f"BROKEN: {' '.join(one.problem.split())}" if one.problem else ", ".join(one.features)
    return (one.kind, one.cls, f"{one.distribution} {one.version}".strip(), contract, last)


def _distribution(point: EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist else ("?", "")
