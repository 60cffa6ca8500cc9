"""Secrets that the kit sends with requests, and looks for where none may be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from csi_multi.contract import Strings
from csi_multi.loading.backend_proxy import takes_secrets

from .assertions import expect
from .context import CheckContext
from .secret_watch import MARKER, revealed

T = TypeVar("T")


def expect_no_secret(text: str, secrets: Strings, where: str) -> None:
    """Require that no secret is in the text. The message names only its key."""
    key = revealed(text, secrets)
    expect(not key, f"{where} contains the value of secret {key!r}")


def given_secrets(t: CheckContext, method: Callable[..., T]) -> Callable[..., T]:
    """Return a method of the node as the driver calls it: with secrets, unless it is one of contract 1.0."""
    return partial(method, secrets=t.storage.secrets) if takes_secrets(method) else method


def wrong_secrets(t: CheckContext) -> dict[str, str]:
    """Return secrets with the right keys and wrong values."""
    return dict.fromkeys(t.storage.secrets, MARKER)
