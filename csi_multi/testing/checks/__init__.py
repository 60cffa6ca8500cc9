"""All checks, one module per subject; importing this package registers them in CHECKS."""

from ..check import CHECKS
from . import (
    aftermath,
    blindness,
    capacity,
    crashes,
    creation,
    faults,
    foreign,
    listing,
    node_crashes,
    node_local,
    races,
    topology,
)

__all__ = [
    "CHECKS",
    "aftermath",
    "blindness",
    "capacity",
    "crashes",
    "creation",
    "faults",
    "foreign",
    "listing",
    "node_crashes",
    "node_local",
    "races",
    "topology",
]
