"""No state in memory: a lifecycle with a restart between any two calls gets the same answers."""

from __future__ import annotations

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..lifecycle import Lifecycle


@check()
def restarts_between_calls_do_not_change_any_answer(t: CheckContext) -> None:
    whole, broken = Lifecycle(t, lambda: None), Lifecycle(t, t.client.restart)

    whole.run()
    broken.run()

    for (label, wanted), (_, found) in zip(whole.transcript, broken.transcript, strict=False):
        same(found, wanted, f"{label}, with a restart between any two calls")
    expect(len(whole.transcript) == len(broken.transcript), "a lifecycle with restarts makes another number of calls")
    t.note(f"{len(broken.transcript)} restarts")
