"""How long a call to EC2 is repeated: as long as the caller of the RPC that it is made for listens.

Kept by thread: botocore, which repeats calls, asks in the thread that makes them, and hands nothing down.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Patience(threading.local):
    listens = 0.0  # until when (time.monotonic()) the caller of this thread's RPC, or of the one before it, listens
    ends = math.inf  # when the call that is made now is not repeated any more


_here = _Patience()


def listening(deadline: float) -> None:
    """Note until when the caller of the RPC that this thread serves listens."""
    _here.listens = deadline


@contextmanager
def call(seconds: float) -> Iterator[None]:
    """Make a call that is repeated for so long at most. A deadline that is over before it was another RPC's."""
    now = time.monotonic()
    ends = now + seconds
    _here.ends = min(ends, _here.listens) if _here.listens > now else ends
    try:
        yield
    finally:
        _here.ends = math.inf


def is_over() -> bool:
    """Say whether the call that this thread makes has been tried for long enough."""
    return time.monotonic() > _here.ends
