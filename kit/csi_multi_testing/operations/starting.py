"""A process that starts over what another left half-made."""

from __future__ import annotations

from typing import Any

from csi_multi.contract import Clone as Cloning
from csi_multi.contract import Snapshots as Snapshotting

from ..context import CheckContext
from ..disturbance import Disturbance, reborn, struck
from ..fault_injection import Fault
from .base import Operation, firmly
from .making import Clone, Create, Making, Restore


class Start(Operation):
    """resume(), after a creation that died at the moment that left most behind."""

    method = "resume"

    def __init__(self, trial: CheckContext) -> None:
        super().__init__(trial)
        self.creation = _creation(trial)
        self.at = messiest(self.creation)

    def prepare(self) -> None:
        self.creation.ready()
        struck(self.t.injector, self.at, Fault.DEATH, self.creation.act)
        reborn(self.t, "resume", resume=False)

    def act(self) -> None:
        self.t.direct.restart(resume=True)

    def prove(self, answer: Any, what: str) -> None:
        what = f"{what}, then {self.creation.method}"
        self.creation.prove(firmly(self.creation.act, what), what)

    def untouched(self) -> bool:
        return False

    def remove(self) -> None:
        self.creation.remove()


def _creation(trial: CheckContext) -> Making:
    """Return the creation that takes most steps."""
    if Cloning in trial.features:
        return Clone(trial)
    return Restore(trial) if Snapshotting in trial.features else Create(trial)


def messiest(creation: Making) -> int:
    """Return the call at which a death leaves most that cannot be found; 1 if nothing is ever left."""
    most, at = 0, 1
    deaths = Disturbance(creation, Fault.DEATH)
    for call in deaths:
        deaths.strike(call)
        reborn(creation.t, deaths.where, resume=False)
        left = len(creation.t.resources() - creation.before)
        if creation.is_unknown() and left > most:
            most, at = left, call
        firmly(creation.act, f"{deaths.where}, repeated")
        creation.made = creation.find()
        creation.finish(f"{deaths.where}, repeated")
    return at
