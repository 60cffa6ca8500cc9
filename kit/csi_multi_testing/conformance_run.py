"""One run of the checks against one instance: over the wire first, then on the backend object.

The two never overlap, so that no driver process works on the storage while a check looks at it from
inside.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence

from csi_multi.commands.demo import Interrupt
from csi_multi.contract import StorageError
from csi_multi.process.driver_process import NotServing

from .assertions import CheckFailed
from .check import Check, Outcome, State, run
from .context import CheckContext
from .csi_wire import CsiClient
from .driver import InstanceDriver
from .fault_injection import FaultInjector
from .instance_under_test import InstanceUnderTest, InstanceUnreadable
from .interruptible import interruptible
from .progress import Progress
from .protocol import BackendProtocol
from .report import CheckResult

WHOLE = "instance"  # the group of what is demanded of the run as a whole

Suite = Callable[[], Iterable[CheckResult]]


class ConformanceRun:
    """Keeps the results, those of an interrupted run too."""

    def __init__(
        self, subject: InstanceUnderTest, driver: InstanceDriver, progress: Progress, interrupt: Interrupt
    ) -> None:
        self.results: list[CheckResult] = []
        self.run_id = uuid.uuid4().hex[:6]
        self._subject = subject
        self._driver = driver
        self._progress = progress
        self._interrupt = interrupt

    def wire(self, checks: Sequence[Check], suite: Suite) -> None:
        """Run checks over the wire, then csi-sanity; at last the driver must end as a supervisor wants it to."""
        try:
            client = CsiClient(self._subject.storage, self._subject.name, self._driver)
        except (NotServing, StorageError, CheckFailed) as error:
            self._demand("wire", "the driver starts", str(error))
            return
        try:
            for one in checks:
                self._judge(one, client, FaultInjector())
            for result in suite():
                self._progress.more(1)
                self._keep(result)
                self._interrupt.act()
        finally:
            self._demand("wire", "the driver ends at SIGTERM and removes its socket", _refusal(client.close))

    def backend(self, checks: Sequence[Check]) -> None:
        """Run checks in this process, each on a new backend object."""
        for one in checks:
            self._judge(one, *self._subject.in_process())

    def unchanged(self, before: set[str]) -> None:
        """Demand that the instance lists what it did before the run."""
        name = "what it listed before the run is what it lists after it"
        try:
            after = self._subject.inventory()
        except InstanceUnreadable as error:
            self._demand("backend", name, str(error))
            return
        changes = [f"gone: {one}" for one in sorted(before - after)] + [f"new: {one}" for one in sorted(after - before)]
        if changes:
            changes.append(f"names of this run contain {self.run_id!r}; what else changed was somebody else's doing")
        self._demand("backend", name, "\n".join(changes))

    def _judge(self, one: Check, client: BackendProtocol, injector: FaultInjector) -> None:
        subject, number = self._subject, len(self.results)
        watched = interruptible(client, self._interrupt)
        context = CheckContext(subject.storage, watched, subject.features, injector, f"{self.run_id}-{number}")
        self._progress.begin(one.group, one.name)
        self._driver.mark()
        found = run(one, context)
        result = CheckResult(
            group=one.group,
            name=one.name,
            where=client.target.value,
            state=found.state,
            text=found.text,
            seconds=round(found.seconds, 3),
            notes=found.notes,
            log=self._log(found) if found.state is State.FAILED else "",
        )
        self._keep(result)

    def _log(self, found: Outcome) -> str:
        """Return what was logged during a check that failed, and how an error came about that is no verdict."""
        foreign = found.error if not isinstance(found.error, CheckFailed) else None
        return self._driver.since_mark() + ("".join(traceback.format_exception(foreign)) if foreign else "")

    def _demand(self, where: str, name: str, text: str) -> None:
        """Keep what is demanded of the run as a whole; `text` is "" when it holds."""
        state = State.FAILED if text else State.PASSED
        self._progress.more(1)
        self._keep(CheckResult(group=WHOLE, name=name, where=where, state=state, text=text))

    def _keep(self, result: CheckResult) -> None:
        self.results.append(result)
        self._progress.end(result)


def _refusal(act: Callable[[], None]) -> str:
    try:
        act()
    except CheckFailed as error:
        return str(error)
    return ""
