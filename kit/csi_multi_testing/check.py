"""The checks of the kit by name, and how one is run: needs, verdict, clean-up, leaks."""

from __future__ import annotations

import enum
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from csi_multi.contract import FEATURES, Backend

from .assertions import CheckFailed, CheckSkipped

if TYPE_CHECKING:
    from .context import CheckContext

Body = Callable[["CheckContext"], None]


class On(enum.Enum):
    """Where a check can be run."""

    ANY = "any"
    BACKEND = "backend"  # needs the backend object: crashes at every call, truthfulness, budgets
    WIRE = "wire"  # needs a driver process


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule of the contract, and the code that tries to break it."""

    name: str  # a sentence
    group: str
    body: Body
    features: tuple[type[Backend], ...]
    needs: tuple[str, ...]  # fields of Storage
    data: bool  # needs the bytes of volumes
    on: On

    def missing(self, trial: CheckContext) -> str:
        """Why the check does not apply; "" if it does."""
        if absent := [one.__name__ for one in self.features if one not in trial.features]:
            return f"the backend does not declare {' and '.join(absent)}"
        if absent := [name for name in self.needs if not getattr(trial.storage, name)]:
            return f"Storage.{' and Storage.'.join(absent)} not given"
        if self.on not in (On.ANY, trial.door.on):
            return f"runs on the {self.on.value} only"
        return trial.no_data() if self.data else ""


CHECKS: dict[str, Check] = {}  # by name, in the order they are defined


def check(
    *features: type[Backend], needs: tuple[str, ...] = (), data: bool = False, on: On = On.ANY
) -> Callable[[Body], Body]:
    """Make a function a check: its name becomes the sentence, its module the group.

    It runs when the backend has all features, when all `needs` fields of Storage are there, and, with
    `data`, when the bytes of volumes can be read and written.
    """

    def register(body: Body) -> Body:
        name = body.__name__.replace("_", " ")
        if name in CHECKS and CHECKS[name].body.__module__ != body.__module__:
            raise ValueError(f"two checks are called {name!r}")
        group = body.__module__.rpartition(".")[2]
        CHECKS[name] = Check(name=name, group=group, body=body, features=features, needs=needs, data=data, on=on)
        return body

    return register


class State(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    check: Check
    state: State
    text: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()  # what was measured, for example how many crash points were met
    error: BaseException | None = None


def run(one: Check, trial: CheckContext) -> Outcome:
    """Run a check, clean up behind it, and look for what it left. Never raises for a verdict."""
    started = time.monotonic()

    def outcome(state: State, text: str = "", error: BaseException | None = None) -> Outcome:
        seconds = time.monotonic() - started
        return Outcome(check=one, state=state, text=text, seconds=seconds, notes=tuple(trial.notes), error=error)

    if reason := one.missing(trial):
        return outcome(State.SKIPPED, reason)
    try:
        with trial:
            one.body(trial)
    except CheckSkipped as reason:
        return outcome(State.SKIPPED, str(reason))
    except CheckFailed as error:
        return outcome(State.FAILED, str(error), error)
    except Exception as error:
        before = f"; the last fault before it: {trial.injector.story}" if trial.injector.story else ""
        return outcome(State.FAILED, f"{asked(error)}{type(error).__name__}: {error}{before}", error)
    return outcome(State.PASSED)


def asked(error: Exception) -> str:
    """Return which contract method raised the error that no check reckoned with, as "create_volume raised "."""
    calls = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = next((name for name in calls if any(hasattr(one, name) for one in (Backend, *FEATURES))), "")
    return f"{found} raised " if found and not found.startswith("_") else ""
