"""All checks, one module per subject; importing this package registers them in CHECKS."""

from ..check import CHECKS
from . import (
    aftermath,
    attach,
    blindness,
    capacity,
    crashes,
    creation,
    faults,
    foreign,
    listing,
    node_crashes,
    node_facts,
    node_local,
    races,
    topology,
)

__all__ = [
    "CHECKS",
    "aftermath",
    "attach",
    "blindness",
    "capacity",
    "crashes",
    "creation",
    "faults",
    "foreign",
    "listing",
    "node_crashes",
    "node_facts",
    "node_local",
    "races",
    "topology",
]
