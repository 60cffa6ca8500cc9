"""How many calls to the storage each method may make, where its author says so: volumes must not add any."""

from __future__ import annotations

from ..assertions import expect
from ..call_counter import CallCounter
from ..check import check
from ..context import CheckContext
from ..protocol import Target

OTHERS = 20  # volumes beside the one that is worked on: calls per volume show
SHOWN = 12  # calls in a verdict


@check(needs=("budgets",), target=Target.BACKEND)
def no_method_makes_more_calls_than_its_budget(t: CheckContext) -> None:
    budgets = t.storage.budgets
    meter = CallCounter(t)
    meter.life()
    unknown = sorted(set(budgets) - set(meter.made))
    expect(
        not unknown,
        f"Storage.budgets names {', '.join(unknown)}: not a method of the contract that this backend has; "
        f"measured are {', '.join(sorted(meter.made))}",
    )
    _judge(meter, "")
    for method, calls in sorted(meter.made.items()):
        t.note(f"{method}: {len(calls)} calls" + (f", budget {budgets[method]}" if method in budgets else ""))

    for _ in range(OTHERS):
        t.volume()
    crowded = CallCounter(t)
    crowded.life()

    _judge(crowded, f" beside {OTHERS} other volumes")


def _judge(meter: CallCounter, where: str) -> None:
    over = []
    for method, most in meter.t.storage.budgets.items():
        if len(calls := meter.made[method]) > most:
            shown = "; ".join(call[:100] for call in calls[:SHOWN])
            over.append(f"{method}: {len(calls)} calls{where}, its budget is {most}: {shown}")
    measured = {method: len(calls) for method, calls in sorted(meter.made.items()) if calls}
    expect(not over, "\n".join([*over, f"measured{where}: {measured}"]))
