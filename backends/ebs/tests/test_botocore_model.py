"""The reduced model of botocore has the calls that the backend makes and the fields that it reads, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from csi_multi_ebs import botocore_model

SERVICES = ("ec2", "service-quotas")


@pytest.fixture(scope="module", params=SERVICES)
def whole(request: Any) -> Any:
    """botocore's own description of a service."""
    return Loader().load_service_model(request.param, "service-2")


def ours(whole: Any) -> set[str]:
    """Return which of our calls go to this service."""
    name = whole["metadata"]["endpointPrefix"]
    return {
        call
        for call, group in botocore_model.CALLS.items()
        if botocore_model.SERVICES.get(group, "ec2").replace("-", "") == name
    }


def test_what_we_read_is_what_the_services_say() -> None:
    shapes = [Loader().load_service_model(name, "service-2")["shapes"] for name in SERVICES]

    for name, read in botocore_model.READ_FIELDS.items():
        (shape,) = [each[name] for each in shapes if name in each]
        assert read <= shape["members"].keys(), name


def test_nothing_that_is_sent_is_cut_short(whole: Any) -> None:
    sent: set[str] = set()
    todo = [whole["operations"][name]["input"]["shape"] for name in ours(whole)]
    while todo:
        if (name := todo.pop()) not in sent:
            sent.add(name)
            todo += botocore_model._references(whole["shapes"][name])

    assert not sent & botocore_model.READ_FIELDS.keys()


def test_the_errors_of_a_call_are_described(whole: Any) -> None:
    """botocore looks for them among the shapes, and fails in a way of its own when one is not there."""
    lean, all_of_it = ServiceModel(botocore_model.reduced(whole)), ServiceModel(whole)

    for name in ours(whole):
        found, wanted = (model.operation_model(name).error_shapes for model in (lean, all_of_it))
        assert [one.name for one in found] == [one.name for one in wanted]


def test_every_call_is_there_and_a_fraction_of_the_rest(whole: Any) -> None:
    lean = botocore_model.reduced(whole)

    assert lean["operations"].keys() == ours(whole)
    part = {"ec2": 20, "servicequotas": 5}[whole["metadata"]["endpointPrefix"]]
    assert len(lean["shapes"]) < len(whole["shapes"]) / part


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

    assert botocore_model.reduced(model) == {
        "metadata": {"serviceId": "EC2"},
        "operations": {"CreateTags": {"input": {"shape": "In"}}},
        "shapes": {
            "In": {"type": "structure", "members": {"documentation": {"shape": "Text"}}},
            "Text": {"type": "string"},
        },
    }
