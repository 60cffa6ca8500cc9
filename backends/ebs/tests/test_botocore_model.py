"""The reduced model of botocore has the calls that the backend makes and the fields that it reads, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.regions import EndpointResolver
from csi_multi_ebs import botocore_model

SERVICES = ("ec2", "service-quotas", "ebs")


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
    part = {"ec2": 20, "servicequotas": 5, "ebs": 1}[whole["metadata"]["endpointPrefix"]]
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


@pytest.mark.parametrize("service", SERVICES)
def test_a_model_is_read_without_what_is_left_out(service: str) -> None:
    whole = Loader().load_service_model(service, "service-2")

    assert botocore_model.loader().load_service_model(service, "service-2") == botocore_model.reduced(whole)


def test_a_model_of_another_service_is_whole() -> None:
    assert botocore_model.loader().load_service_model("sts", "service-2") == Loader().load_service_model(
        "sts", "service-2"
    )


@pytest.mark.parametrize("region", ["eu-west-1", "us-gov-west-1", "cn-north-1", "eusc-de-east-1", "mars-north-1"])
def test_endpoints_are_those_of_botocore(region: str) -> None:
    told = []
    for loader in (Loader(), botocore_model.loader()):
        resolver = EndpointResolver(loader.load_data("endpoints"))
        told.append([resolver.construct_endpoint(name, region) for name in sorted(botocore_model.ENDPOINTS)])

    assert told[0] == told[1]
