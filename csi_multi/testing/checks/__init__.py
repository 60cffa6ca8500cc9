"""All checks, one module per subject; importing this package registers them in CHECKS."""

from ..check import CHECKS
from . import crashes, creation

__all__ = ["CHECKS", "crashes", "creation"]
