"""One run of the checks against one instance: over CSI first, then on the backend object.

The two never overlap, so that no driver process changes the storage while a check runs on the backend object.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from csi_multi.commands.demo import Interrupt
from csi_multi.contract import StorageError
from csi_multi.process.driver_process import NotServing

from .assertions import CheckFailed
from .check import Check, CheckState, Outcome, run
from .context import CheckContext
from .csi_wire import CsiClient
from .driver import InstanceDriver
from .fault_injection import FaultInjector
from .growth import grows_only_attached
from .instance_under_test import InstanceUnderTest, InstanceUnreadable
from .interruptible import interruptible
from .progress import Progress
from .protocol import BackendProtocol
from .report import CheckResult
from .secret_watch import revealed

RUN_GROUP = "instance"  # the group of the results about the run as a whole

SuiteResults = Callable[[], Iterable[CheckResult]]


class ConformanceRun:
    """Runs checks and collects the results, also those of an interrupted run."""

    def __init__(
        self, instance: InstanceUnderTest, driver: InstanceDriver, progress: Progress, interrupt: Interrupt
    ) -> None:
        self.results: list[CheckResult] = []
        self.run_id = uuid.uuid4().hex[:6]
        self._instance = instance
        self._driver = driver
        self._progress = progress
        self._interrupt = interrupt

    def run_over_csi(self, checks: Sequence[Check], suite: SuiteResults) -> None:
        """Run checks over CSI, then csi-sanity; at the end the driver must stop cleanly."""
        try:
            client = CsiClient(
                self._instance.storage,
                self._instance.name,
                self._driver,
                grows_only_attached=grows_only_attached(self._instance.cls),
            )
        except (NotServing, StorageError, CheckFailed) as error:
            self._add_result("wire", "the driver starts", str(error))
            return
        try:
            for one in checks:
                self._run_check(one, client, FaultInjector())
            for result in suite():
                self._progress.expect_more(1)
                self._add(result)
                self._interrupt.raise_if_received()
        finally:
            self._add_result("wire", "the driver ends at SIGTERM and removes its socket", _failure_text(client.close))

    def run_on_backend(self, checks: Sequence[Check]) -> None:
        """Run checks in this process, each on a new backend object."""
        for one in checks:
            self._run_check(one, *self._instance.in_process())

    def compare_listing(self, before: set[str]) -> None:
        """Require that the instance lists the same resources as before the run."""
        name = "the listing after the run equals the listing before it"
        try:
            after = self._instance.inventory()
        except InstanceUnreadable as error:
            self._add_result("backend", name, str(error))
            return
        changes = [f"gone: {one}" for one in sorted(before - after)] + [f"new: {one}" for one in sorted(after - before)]
        if changes:
            changes.append(f"names of this run contain {self.run_id!r}; other changes have another cause")
        self._add_result("backend", name, "\n".join(changes))

    def _run_check(self, one: Check, client: BackendProtocol, injector: FaultInjector) -> None:
        instance, number = self._instance, len(self.results)
        interruptible_client = interruptible(client, self._interrupt)
        context = CheckContext(
            instance.storage, interruptible_client, instance.features, injector, f"{self.run_id}-{number}"
        )
        self._progress.begin(one.group, one.name)
        self._driver.mark_logs()
        found = run(one, context)
        if found.state is CheckState.PASSED and (text := self._secret_in_log()):
            found = replace(found, state=CheckState.FAILED, text=text)
        result = CheckResult(
            group=one.group,
            name=one.name,
            where=client.target.value,
            state=found.state,
            text=found.text,
            seconds=round(found.seconds, 3),
            notes=found.notes,
            log=self._log(found) if found.state is CheckState.FAILED else "",
        )
        self._add(result)

    def _secret_in_log(self) -> str:
        key = revealed(self._driver.logs_since_mark(), self._instance.storage.secrets)
        return f"the driver's log contains the value of secret {key!r}; secrets end with the call" if key else ""

    def _log(self, found: Outcome) -> str:
        """Return the log of a failed check, and the traceback of an error that the check did not expect."""
        foreign = found.error if not isinstance(found.error, CheckFailed) else None
        return self._driver.logs_since_mark() + ("".join(traceback.format_exception(foreign)) if foreign else "")

    def _add_result(self, where: str, name: str, text: str) -> None:
        """Add a result about the run as a whole; `text` is "" if it passed."""
        state = CheckState.FAILED if text else CheckState.PASSED
        self._progress.expect_more(1)
        self._add(CheckResult(group=RUN_GROUP, name=name, where=where, state=state, text=text))

    def _add(self, result: CheckResult) -> None:
        self.results.append(result)
        self._progress.end(result)


def _failure_text(act: Callable[[], None]) -> str:
    try:
        act()
    except CheckFailed as error:
        return str(error)
    return ""
