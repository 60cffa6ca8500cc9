"""A server whose disk is slow (Storage.server): calls that meet in it have the outcome that they have elsewhere.

What looks first and acts later does so within microseconds on a quick disk, and nobody comes in between.
"""

from __future__ import annotations

from ..assertions import CheckFailed, CheckSkipped
from ..check import CHECKS, check
from ..context import CheckContext
from ..disk_changes import slowed, traced
from ..protocol import Target
from ..server_kills import server_of

GROUPS = ("races", "space_races")
MILLISECONDS = 5  # that each change to the disk, and each sync, takes longer


@check(needs=("server",), target=Target.BACKEND)
def races_have_the_same_outcome_where_the_disk_of_the_server_is_slow(t: CheckContext) -> None:
    tried = 0
    with traced(server_of(t).processes(), *slowed(MILLISECONDS)):
        for one in CHECKS.values():
            if one.group not in GROUPS or one.skip_reason(t):
                continue
            try:
                with CheckContext(t.storage, t.client, t.features, t.injector) as context:
                    one.body(context)
            except CheckSkipped:
                continue
            except CheckFailed as error:
                what = f"{one.name}, where each change to the disk of the server takes {MILLISECONDS} ms longer"
                raise CheckFailed(f"{what}: {error}") from error
            tried += 1
    t.note(f"{tried} races with a slow server")
