"""The number of calls to the storage per method, as its author limits it; other volumes must not add calls."""

from __future__ import annotations

from ..assertions import expect
from ..call_counter import CallCounter
from ..check import check
from ..context import CheckContext
from ..protocol import Target

OTHER_VOLUMES = 20  # other volumes on the storage, so that calls per volume become visible
MAX_SHOWN_CALLS = 12  # calls in a message


@check(needs=("budgets",), target=Target.BACKEND)
def no_method_makes_more_calls_than_its_budget(t: CheckContext) -> None:
    budgets = t.storage.budgets
    counter = CallCounter(t)
    counter.run_lifecycle()
    unknown = sorted(set(budgets) - set(counter.calls))
    expect(
        not unknown,
        f"Storage.budgets names {', '.join(unknown)}: this backend has no such method of the contract; "
        f"measured are {', '.join(sorted(counter.calls))}",
    )
    _expect_within(counter, "")
    for method, calls in sorted(counter.calls.items()):
        t.note(f"{method}: {len(calls)} calls" + (f", budget {budgets[method]}" if method in budgets else ""))

    for _ in range(OTHER_VOLUMES):
        t.volume()
    with_others = CallCounter(t)
    with_others.run_lifecycle()

    _expect_within(with_others, f" beside {OTHER_VOLUMES} other volumes")


def _expect_within(counter: CallCounter, where: str) -> None:
    over = []
    for method, most in counter.t.storage.budgets.items():
        if len(calls := counter.calls[method]) > most:
            shown = "; ".join(call[:100] for call in calls[:MAX_SHOWN_CALLS])
            over.append(f"{method}: {len(calls)} calls{where}, its budget is {most}: {shown}")
    measured = {method: len(calls) for method, calls in sorted(counter.calls.items()) if calls}
    expect(not over, "\n".join([*over, f"measured{where}: {measured}"]))
