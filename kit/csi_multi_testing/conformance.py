"""`csi-multi conformance`: every check of the kit against a configured instance, without pytest."""

from __future__ import annotations

import argparse
import datetime
import io
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from csi_multi.commands.demo import Interrupt
from csi_multi.config.document import ConfigError
from csi_multi.config.settings import load_config
from csi_multi.loading.loader import UnusableBackend
from csi_multi.logs.handlers import set_up_logging

from . import instance_under_test, sanity, storage_file
from .check import Check
from .checks import CHECKS
from .conformance_run import ConformanceRun
from .driver import InstanceDriver, only_instance
from .instance_under_test import InstanceUnderTest, InstanceUnreadable
from .junit import as_junit
from .progress import Progress
from .protocol import Target
from .report import BackendInfo, ConformanceReport, as_json, as_text


def conformance(options: argparse.Namespace) -> int:
    """Return 0 if no check failed, 1 if one did, 2 if the run was refused. Raises ConfigError."""
    checks = [one for one in CHECKS.values() if options.only in f"{one.group}: {one.name}"]
    if options.list:
        print("\n".join(map(describe_check, checks)))
        print(f"\n{storage_file.help_text()}")
        return 0
    if not (options.config and options.backend):
        raise ConfigError("conformance: --config FILE and --backend NAME are required")
    suite = sanity.choose_suite(options.sanity, options.only)
    if not checks and suite.disabled:
        raise ConfigError(f"--only {options.only!r} matches no group and no check; --list shows all of them")
    for file in (options.json, options.junit):
        _require_writable(file)
    return _run(options, checks, suite)


def _run(options: argparse.Namespace, checks: Sequence[Check], suite: sanity.SanitySuite) -> int:
    """Test the instance. The logs are in a temporary directory, which is kept if a check failed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack characters of the report
    settings = only_instance(load_config(options.config), options.backend)
    described = storage_file.load(options.storage)
    process = InstanceDriver(settings)
    report = None
    try:
        with _logging_to(process.directory / "kit.log"):
            instance = instance_under_test.load(settings, described)
            before = instance.inventory()
            if not is_permitted(instance, before, storage_file.harmful_hooks(described), yes=options.yes):
                return 2
            report = run_checks(instance, process, checks, suite, before)
    except (UnusableBackend, InstanceUnreadable) as error:
        print(f"csi-multi: backend {options.backend!r} cannot be tested: {error}", file=sys.stderr)
        return 1
    finally:
        kept = report is not None and not report.passed
        process.remove_files(logs=not kept)
    for name, text in report.logs.items():
        (process.directory / name).write_text(text, encoding="utf-8")
    print(as_text(report, str(process.directory) if kept else ""))
    for file, form in ((options.json, as_json), (options.junit, as_junit)):
        if file:
            file.write_text(form(report), encoding="utf-8")
    return 0 if report.passed else 1


def describe_check(one: Check) -> str:
    """Return a line with a check's name, where it runs, and what it needs."""
    needs = [feature.__name__ for feature in one.features] + [f"Storage.{name}" for name in one.needs]
    needs += ["the data of volumes"] if one.data else []
    where = {Target.ANY: "wire", Target.WIRE: "wire", Target.BACKEND: "backend"}[one.target]
    return f"{one.group}: {one.name} ({where}{'; needs ' + ', '.join(needs) if needs else ''})"


def is_permitted(instance: InstanceUnderTest, before: set[str], hooks: Sequence[str], *, yes: bool) -> bool:
    """Print what the run and these hooks do to the instance; return whether it may start."""
    count = f"lists {len(before)} volumes and snapshots" if before else "lists nothing"
    contents = count if instance.can_list_volumes else "has no listing of volumes"
    about = f"backend {instance.name!r} ({instance.kind}, {instance.package}), which {contents} now"
    print(f"WARNING: this creates and deletes volumes on {about}", flush=True)
    if hooks:
        print(f"WARNING: every volume of that storage can be hit by {', '.join(hooks)} of --storage", flush=True)
    if yes:
        return True
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input("Continue? [y/N] ").strip().lower() in ("y", "yes")
    if instance.can_list_volumes and not before and not hooks:
        return True
    rest = f", without {' and '.join(hooks)}" if hooks else ""
    print(
        f"csi-multi: refused: the storage may be in use; give --yes, or test an instance that lists nothing{rest}",
        file=sys.stderr,
    )
    return False


def run_checks(
    instance: InstanceUnderTest,
    process: InstanceDriver,
    checks: Sequence[Check],
    suite: sanity.SanitySuite,
    before: set[str],
) -> ConformanceReport:
    """Run all checks and csi-sanity; after an interrupt, return the results so far."""
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    progress = Progress(len(checks), sys.stdout)
    with Interrupt() as interrupt:
        session = ConformanceRun(instance.with_real_size(), process, progress, interrupt)
        try:
            outside = [one for one in checks if one.target is not Target.BACKEND]
            if outside or not suite.disabled:
                session.run_over_csi(outside, lambda: suite.results(process, instance.storage))
            session.run_on_backend([one for one in checks if one.target is Target.BACKEND])
            complete = True
        except KeyboardInterrupt:
            complete = False
            progress.print_line("interrupted: everything that was created is removed; checking what remains")
        session.compare_listing(before)
    progress.done()
    features = tuple(sorted(one.__name__ for one in instance.features))
    return ConformanceReport(
        backend=BackendInfo(instance=instance.name, kind=instance.kind, package=instance.package, features=features),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 3),
        complete=complete,
        results=tuple(session.results),
    )


def _require_writable(file: Path | None) -> None:
    """Raise ConfigError for a file that cannot be written: better now than after all checks."""
    if file and not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"report file {file} cannot be written; choose another path")


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Write the logs of this process to a file, so that they do not appear between the results."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    try:
        with file.open("w", encoding="utf-8") as stream:
            set_up_logging("info", "json", stream)
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
