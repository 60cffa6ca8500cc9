"""The registry of checks, and how one check runs: requirements, result, clean-up, search for leaks."""

from __future__ import annotations

import enum
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from csi_multi.contract import FEATURES, Backend

from .assertions import CheckFailed, CheckSkipped
from .context import CheckContext
from .fault_injection import ProcessDied
from .protocol import Target

CheckFunction = Callable[[CheckContext], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule of the contract, and the code that tries to break it."""

    name: str  # a sentence
    group: str
    body: CheckFunction
    features: tuple[type[Backend], ...]
    needs: tuple[str, ...]  # fields of Storage
    data: bool  # needs to read and write the data of volumes
    target: Target

    def skip_reason(self, context: CheckContext) -> str:
        """Why the check does not apply; "" if it does."""
        if absent := [one.__name__ for one in self.features if one not in context.features]:
            return f"the backend does not declare {' and '.join(absent)}"
        if absent := [name for name in self.needs if not getattr(context.storage, name)]:
            return f"Storage.{' and Storage.'.join(absent)} not given"
        if self.target not in (Target.ANY, context.client.target):
            return f"runs only against the {self.target.value}"
        return context.no_data_reason() if self.data else ""


CHECKS: dict[str, Check] = {}  # by name, in the order they are defined


def check(
    *features: type[Backend], needs: tuple[str, ...] = (), data: bool = False, target: Target = Target.ANY
) -> Callable[[CheckFunction], CheckFunction]:
    """Make a function a check: its name becomes the sentence, its module the group.

    It runs if the backend has all features, if all fields of Storage in `needs` are given, and, with `data`, if
    the data of volumes can be read and written.
    """

    def register(body: CheckFunction) -> CheckFunction:
        name = body.__name__.replace("_", " ")
        if name in CHECKS and CHECKS[name].body.__module__ != body.__module__:
            raise ValueError(f"two checks have the name {name!r}; rename one")
        group = body.__module__.rpartition(".")[2]
        CHECKS[name] = Check(
            name=name, group=group, body=body, features=features, needs=needs, data=data, target=target
        )
        return body

    return register


class CheckState(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    check: Check
    state: CheckState
    text: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()  # measurements, for example the number of crash points
    error: BaseException | None = None


def run(one: Check, context: CheckContext) -> Outcome:
    """Run a check, clean up after it, and look for what remains. A failed check is a result, not an exception."""
    started = time.monotonic()

    def outcome(state: CheckState, text: str = "", error: BaseException | None = None) -> Outcome:
        seconds = time.monotonic() - started
        return Outcome(check=one, state=state, text=text, seconds=seconds, notes=tuple(context.notes), error=error)

    if reason := one.skip_reason(context):
        return outcome(CheckState.SKIPPED, reason)
    try:
        with context:
            one.body(context)
    except CheckSkipped as reason:
        return outcome(CheckState.SKIPPED, str(reason))
    except CheckFailed as error:
        return outcome(CheckState.FAILED, str(error), error)
    except (Exception, ProcessDied) as error:
        before = f"; the last injected fault: {context.injector.description}" if context.injector.description else ""
        return outcome(CheckState.FAILED, f"{contract_method(error)}{type(error).__name__}: {error}{before}", error)
    return outcome(CheckState.PASSED)


def contract_method(error: BaseException) -> str:
    """Return the contract method that raised an unexpected error, as "create_volume raised "; "" if unknown."""
    calls = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = next((name for name in calls if any(hasattr(one, name) for one in (Backend, *FEATURES))), "")
    return f"{found} raised " if found and not found.startswith("_") else ""
