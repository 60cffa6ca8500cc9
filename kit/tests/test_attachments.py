"""A backend that insists on attachments: checks attach before they open a device, and detach before they delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import attach, budgets, devices, interleavings, reopened_devices

from .checks import attached_files


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (budgets.no_method_makes_more_calls_than_its_budget, {"budgets": {"open_device": 1000, "has_data": 1000}}),
        (attach.a_volume_that_is_attached_to_another_node_is_not_opened_here, {}),
        (devices.a_volume_that_was_detached_while_its_device_is_open_is_not_deleted, {}),
        (interleavings.an_expansion_and_a_note_of_another_process_undo_nothing, {}),
    ],
)
def test_a_backend_that_insists_on_attachments_passes(
    judged: Any, check: Callable[..., None], given: dict[str, Any]
) -> None:
    outcome = judged(check, lambda: attached_files.storage(**given))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_backend_that_copies_nothing_that_is_attached_passes(judged: Any) -> None:
    check = reopened_devices.what_was_not_synced_survives_closing_the_device

    outcome = judged(check, lambda: attached_files.storage(attached_files.RefusesToCopy))

    assert outcome.state is CheckState.PASSED, outcome.text
