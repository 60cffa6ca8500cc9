"""botocore is told of the calls we make and the answers we read: all of them, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.loaders import Loader
from csi_multi_ebs import models


@pytest.fixture(scope="module")
def whole() -> Any:
    """botocore's own description of EC2."""
    return Loader().load_service_model("ec2", "service-2")


def test_what_we_read_is_what_ec2_says(whole: Any) -> None:
    for name, read in models.READ.items():
        assert read <= whole["shapes"][name]["members"].keys(), name


def test_nothing_that_is_sent_is_cut_short(whole: Any) -> None:
    sent: set[str] = set()
    todo = [whole["operations"][name]["input"]["shape"] for name in models.CALLS]
    while todo:
        if (name := todo.pop()) not in sent:
            sent.add(name)
            todo += models._references(whole["shapes"][name])

    assert not sent & models.READ.keys()


def test_every_call_is_there_and_a_fraction_of_the_rest(whole: Any) -> None:
    lean = models.pruned(whole)

    assert lean["operations"].keys() == models.CALLS.keys()
    assert len(lean["shapes"]) < len(whole["shapes"]) / 20


def test_a_shape_that_a_call_refers_to_stays_and_an_explanation_goes() -> None:
    model = {
        "metadata": {"serviceId": "EC2"},
        "operations": {"CreateTags": {"input": {"shape": "In"}, "documentation": "long"}, "RunInstances": {}},
        "shapes": {
            "In": {"type": "structure", "members": {"documentation": {"shape": "Text", "documentation": "long"}}},
            "Text": {"type": "string"},
            "Other": {"type": "string"},
        },
    }

    assert models.pruned(model) == {
        "metadata": {"serviceId": "EC2"},
        "operations": {"CreateTags": {"input": {"shape": "In"}}},
        "shapes": {
            "In": {"type": "structure", "members": {"documentation": {"shape": "Text"}}},
            "Text": {"type": "string"},
        },
    }
