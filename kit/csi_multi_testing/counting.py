"""What a check added to the storage, and what it left there.

With copy-on-write a volume may get another layer in place of its own when a snapshot or a copy of it comes, and again
when that goes. Only where the author says so (Storage.layers) may a new resource take the place of one that vanished:
elsewhere it was left, and the other one was removed by mistake.
"""

from __future__ import annotations

from .assertions import CheckFailed, expect
from .context import CheckContext

SHOWN = 10  # names in a message


def added_since(t: CheckContext, before: set[str]) -> int:
    """Return how many resources there are more, without those that took the place of others."""
    now = t.resources()
    return len(now - before) - (len(before - now) if t.storage.layers else 0)


def expect_nothing_left(t: CheckContext, before: set[str], what: str) -> None:
    """Require that nothing is there that was not there before."""
    now = t.resources()
    left, gone = now - before, before - now
    if left and not (t.storage.layers and len(left) <= len(gone)):
        raise CheckFailed(f"{what}: remaining: {_names(left)}{_explain(t, gone)}")


def expect_as_before(t: CheckContext, before: set[str], what: str) -> None:
    """Require that nothing is left and nothing else has vanished."""
    expect_nothing_left(t, before, what)
    now = t.resources()
    gone = before - now
    expect(len(gone) == len(now - before), f"{what}: gone: {_names(gone)}{_explain(t, gone)}")


def _names(resources: set[str]) -> str:
    return ", ".join(sorted(resources)[:SHOWN])


def _explain(t: CheckContext, gone: set[str]) -> str:
    if t.storage.layers or not gone:
        return ""
    return f" ({_names(gone)} vanished; if one took the place of the other, give Storage.layers)"
