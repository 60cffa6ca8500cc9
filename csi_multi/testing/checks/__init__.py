"""All checks, one module per subject; importing this package registers them in CHECKS."""

from ..check import CHECKS
from . import aftermath, crashes, creation, node_crashes

__all__ = ["CHECKS", "aftermath", "crashes", "creation", "node_crashes"]
