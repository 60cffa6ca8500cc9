"""Imports (`csi-multi import`): data stays as it is, the volume is never deleted, and a release undoes all of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar

from csi_multi.contract import (
    AlreadyExists,
    Blank,
    DryRunReport,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    SizeRange,
    Unpredictable,
    Volume,
)
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, expect, same
from ..check import check
from ..context import CheckContext, pages
from ..operations.base import attempt, describe_error
from ..operations.importing import ImportVolume, ReleaseVolume, by_hand, expect_data, imports
from ..protocol import Target
from .attach import attach
from .blanks import blank_of
from .crashes import expect_recovery
from .creation import expect_equal_records
from .devices import open_device
from .explain import expect_steps, names_of

T = TypeVar("T")


def dry_run(t: CheckContext, report: DryRunReport, call: Callable[[Any], T], what: str) -> T | None:
    """Return the answer of a dry run; None, with a note, where it cannot predict. Raises CheckFailed."""
    backend = t.backend.dry_run(report)
    try:
        answer, error = attempt(partial(call, backend))
    finally:
        backend.close()
    if isinstance(error, Unpredictable):
        t.note(f"{what}: {error}")
        return None
    if error:
        raise CheckFailed(f"{what}: raised {describe_error(error)}, the call is served") from error
    return answer


def expect_unchanged(t: CheckContext, made: Volume, before: set[str], what: str) -> None:
    """Require that the imported volume and the storage are what they were."""
    expect_equal_records(t.client.get(made.handle), made, f"{what}, then get_volume")
    same(t.new_resources(), before, f"{what}: the storage, against what was there before")
    expect_data(t, made, what)


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def an_import_keeps_the_data_and_can_be_repeated(t: CheckContext) -> None:
    with imports(t) as all_imports:
        native, stamp = by_hand(t), all_imports.stamp()
        made = all_imports.volume(native, stamp)
        same(made.stamp, stamp, "import_volume: the stamp")
        before = t.new_resources()
        for when in ("import_volume", "import_volume, repeated", "import_volume, repeated after a restart"):
            same(t.backend.find_volume(stamp.name), made, f"{when}, then find_volume")
            if b.ListVolumes in t.features:
                listed = [one for one in pages(t.client.list_volumes) if one.handle == made.handle]
                same(listed, [made], f"{when}, then the volume in list_volumes")
            expect_unchanged(t, made, before, when)
            if when.endswith("repeated"):
                t.client.restart()
            same(t.backend.import_volume(native, stamp), made, f"{when}, and once more: its answer")


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def an_imported_volume_is_never_deleted(t: CheckContext) -> None:
    """Not even after an expansion, which writes its record again."""
    with imports(t) as all_imports:
        made = all_imports.volume()
        before = t.new_resources()
        with t.refused(FailedPrecondition, what="delete_volume of an imported volume"):
            t.client.delete(made.handle)
        expect_unchanged(t, made, before, "delete_volume of an imported volume: refused")
        if b.Expand in t.features:
            t.client.expand(made.handle, SizeRange(required=made.size + t.size))
            t.client.restart()
            expect(t.client.get(made.handle).stamp.imported, "expand_volume of an imported volume: it is not imported")
            with t.refused(FailedPrecondition, what="delete_volume of an imported volume that was expanded"):
                t.client.delete(made.handle)
            expect_data(t, made, "expand_volume of an imported volume")


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def a_release_undoes_an_import_and_keeps_the_data(t: CheckContext) -> None:
    """It can be imported again by the name that it had before."""
    with imports(t) as all_imports:
        native = by_hand(t)
        before = t.new_resources()
        for round_ in ("", ", a second time"):
            made = all_imports.volume(native)
            expect_data(t, made, f"import_volume{round_}")
            text = t.backend.release_volume(made.handle)
            in_one_line = isinstance(text, str) and text.strip() and text.isprintable()
            expect(in_one_line, f"release_volume{round_}: returned {text!r}, not a text in one line for people")
            same(t.new_resources(), before, f"release_volume{round_}: the storage, against what was there before")
            for call in (t.client.get, t.backend.release_volume):
                with t.refused(NotFound, FailedPrecondition, what=f"release_volume{round_}, then another call for it"):
                    call(made.handle)


@check(b.Import, target=Target.BACKEND)
def only_an_imported_volume_is_released(t: CheckContext) -> None:
    made = t.volume()
    before = t.new_resources()

    with t.refused(FailedPrecondition, what="release_volume of a volume that the driver created"):
        t.backend.release_volume(made.handle)
    expect_equal_records(t.client.get(made.handle), made, "release_volume: refused, then get_volume")
    same(t.new_resources(), before, "release_volume: refused, but the storage changed")
    t.client.delete(made.handle)
    with t.refused(NotFound, what="release_volume of a volume that was deleted"):
        t.backend.release_volume(made.handle)


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def what_is_a_volume_already_is_not_imported_again(t: CheckContext) -> None:
    other, native = by_hand(t), by_hand(t)
    with imports(t) as all_imports:
        made = all_imports.volume(native)
        before = t.new_resources()
        what = "import_volume of what was imported under another name"
        with t.refused(AlreadyExists, FailedPrecondition, NotFound, InUse, what=what):
            all_imports.volume(native)
        expect_unchanged(t, made, before, f"{what}: refused")
        what = "import_volume under the name of an imported volume"
        with t.refused(AlreadyExists, what=what):
            all_imports.volume(other, made.stamp)
        expect_unchanged(t, made, before, f"{what}: refused")
        own = t.volume()
        before = t.new_resources()
        with t.refused(AlreadyExists, what="import_volume under the name of a volume of the driver"):
            all_imports.volume(other, all_imports.stamp(own.stamp.name))
        same(t.new_resources(), before, "import_volume under a taken name: refused, but the storage changed")
        expect_equal_records(t.client.get(own.handle), own, "import_volume under a taken name: refused, then it")


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def what_does_not_exist_is_not_imported(t: CheckContext) -> None:
    """The names are like one that exists, and have a random part: nobody has them."""
    native, random = by_hand(t), secrets.token_hex(8)
    before = t.new_resources()
    with imports(t) as all_imports:
        unknown = (f"{native}-{random}", f"{native[:-1]}{random}", f"..-{random}", f"no such {random} \N{SNOWMAN}", "")
        for name in unknown:
            with t.refused(NotFound, InvalidArgument, FailedPrecondition, what=f"import_volume({name!r})"):
                t.backend.import_volume(name, all_imports.stamp())
            same(t.new_resources(), before, f"import_volume({name!r}): refused, but the storage changed")


@check(b.Import, needs=("importable", "devices"), data=True, target=Target.BACKEND)
def an_imported_volume_is_never_blank_and_not_released_while_it_is_open(t: CheckContext) -> None:
    with imports(t) as all_imports:
        made = all_imports.volume()
        same(blank_of(t, made, "an imported volume"), Blank.NEVER, "import_volume, then Device.blank")
        open_device(t, made)
        before = t.new_resources()
        with t.refused(InUse, what="release_volume while the device is open"):
            t.backend.release_volume(made.handle)
        same(t.new_resources(), before, "release_volume while the device is open: refused, but the storage changed")
        t.backend.close_device(made.handle)
        if b.Attach in t.features:
            t.client.detach(made.handle, None)
        t.forget(made)
        expect_data(t, made, "release_volume while the device is open: refused, then the volume")


@check(b.Import, b.Attach, needs=("importable", "nodes"), target=Target.BACKEND)
def an_attached_volume_is_not_released(t: CheckContext) -> None:
    node = t.storage.nodes[0]
    with imports(t) as all_imports:
        made = all_imports.volume()
        attach(t, made, node)
        with t.refused(InUse, what="release_volume while the volume is attached"):
            t.backend.release_volume(made.handle)
        t.client.detach(made.handle, node)
        t.forget(made)
        expect_equal_records(t.client.get(made.handle), made, "release_volume while attached: refused, then get_volume")


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def dry_runs_of_an_import_and_its_release_change_nothing(t: CheckContext) -> None:
    with imports(t) as all_imports:
        native, stamp, report = by_hand(t), all_imports.stamp(), DryRunReport()
        before, what = t.new_resources(), "dry run of import_volume"
        predicted = dry_run(t, report, methodcaller("import_volume", native, stamp), what)
        if predicted is not None:
            expect_steps(report, what, *names_of(native))
        same(t.new_resources(), before, f"{what}: the storage, against what was there before")
        with t.refused(NotFound, what=f"{what}, then find_volume"):
            t.backend.find_volume(stamp.name)

        made, report, what = all_imports.volume(native, stamp), DryRunReport(), "dry run of release_volume"
        if predicted is not None:
            same(predicted, made, "dry run of import_volume: its answer, against import_volume's")
        before = t.new_resources()
        if dry_run(t, report, methodcaller("release_volume", made.handle), what) is not None:
            expect_steps(report, what, *names_of(made.handle))
        expect_unchanged(t, made, before, what)


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def an_import_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    with imports(t) as all_imports:
        expect_recovery(ImportVolume(all_imports))


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def a_release_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    with imports(t) as all_imports:
        expect_recovery(ReleaseVolume(all_imports))
