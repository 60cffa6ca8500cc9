"""A process dies when it has emptied a file to write it anew: what was in it is lost, and what was to be in it is not.

A record that is written under another name, and renamed, loses nothing.
"""

from __future__ import annotations

from csi_multi.contract import backend as b

from ..check import check
from ..context import CheckContext
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep
from ..operations.base import Operation
from ..operations.change import ExpandVolume, ModifyVolume
from ..operations.device import NoteFormatted, NoteFormatting
from ..protocol import Target
from .after_crash import creations
from .crashes import expect_completed


def expect_nothing_torn(operation: Operation, *, resumes: tuple[bool, ...] = (True, False)) -> None:
    for resume in resumes:
        deaths = FaultSweep(operation, Fault.TORN)
        for call in deaths:
            operation.clean_up(expect_completed(deaths, call, resume=resume))


@check(needs=("files",), target=Target.BACKEND)
def a_creation_completes_after_a_crash_that_left_a_file_empty(t: CheckContext) -> None:
    for number, creation in enumerate(creations(t)):
        expect_nothing_torn(creation, resumes=(False,) if number else (True, False))


@check(b.Expand, needs=("files",), target=Target.BACKEND)
def an_expansion_completes_after_a_crash_that_left_a_file_empty(t: CheckContext) -> None:
    expect_nothing_torn(ExpandVolume(t))


@check(b.Modify, needs=("files", "other_mutable"), target=Target.BACKEND)
def a_modification_completes_after_a_crash_that_left_a_file_empty(t: CheckContext) -> None:
    expect_nothing_torn(ModifyVolume(t))


@check(needs=("files", "devices"), data=True, target=Target.BACKEND)
def the_format_notes_are_old_or_new_after_a_crash_that_left_a_file_empty(t: CheckContext) -> None:
    for note in (NoteFormatting(t), NoteFormatted(t)):
        expect_nothing_torn(note)
