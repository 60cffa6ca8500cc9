"""The start of a process after another one died during a creation."""

from __future__ import annotations

from typing import Any

from csi_multi.contract import Clone, Snapshots

from ..context import CheckContext
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep, restart_process, run_with_fault
from .base import Operation, retry
from .create import CloneVolume, CreateOperation, CreateVolume, RestoreVolume


class ResumeProcess(Operation):
    """resume(), after a creation that died at the call that leaves most resources."""

    method = "resume"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.creation = _creation(t)
        self.at = call_leaving_most(self.creation)

    def prepare(self) -> None:
        self.creation.begin()
        run_with_fault(self.t.injector, self.at, Fault.DEATH, self.creation.act)
        restart_process(self.t, "resume", resume=False)

    def act(self) -> None:
        self.t.in_process.restart(resume=True)

    def verify(self, answer: Any, what: str) -> None:
        what = f"{what}, then {self.creation.method}"
        self.creation.verify(retry(self.creation.act, what), what)

    def is_unchanged(self) -> bool:
        return False

    def remove(self) -> None:
        self.creation.remove()


def _creation(t: CheckContext) -> CreateOperation:
    """Return the creation with the most steps."""
    if Clone in t.features:
        return CloneVolume(t)
    return RestoreVolume(t) if Snapshots in t.features else CreateVolume(t)


def call_leaving_most(creation: CreateOperation) -> int:
    """Return the call at which a death leaves most resources that no find returns; 1 if none are ever left."""
    most, at = 0, 1
    deaths = FaultSweep(creation, Fault.DEATH)
    for call in deaths:
        deaths.inject(call)
        restart_process(creation.t, deaths.where, resume=False)
        left = len(creation.t.resources() - creation.before)
        if creation.is_missing() and left > most:
            most, at = left, call
        retry(creation.act, f"{deaths.where}, repeated")
        creation.made = creation.find()
        creation.clean_up(f"{deaths.where}, repeated")
    return at
