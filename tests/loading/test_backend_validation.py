"""Whether a registered class can be a backend is found from the class alone, with the reason."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import CONTRACT, Backend, Clone, Doc, Expand, Schema
from csi_multi.loading.backend_validation import why_unusable
from tests.loading.contract_1_0 import OldBackend


def test_a_feature_that_is_not_declared_is_noticed() -> None:
    class Sly(MemoryBackend):
        def node_segments(self) -> dict[str, str]:
            return {}

    assert why_unusable(Sly) == "has the method node_segments but does not derive from Topology"
    assert why_unusable(MemoryBackend) == ""


def test_an_abstract_class_is_named_with_what_it_lacks() -> None:
    class Half(Expand, Clone):
        contract = CONTRACT

    assert "clone_volume, close_device, create_volume" in why_unusable(Half)
    assert "a feature must be implemented completely" in why_unusable(Half)


@pytest.mark.parametrize("declared", [CONTRACT, (CONTRACT[0], 0)])
def test_an_older_minor_contract_fits(declared: tuple[int, int]) -> None:
    assert why_unusable(type("Old", (MemoryBackend,), {"contract": declared})) == ""


def test_a_backend_has_every_abstract_method_once() -> None:
    assert issubclass(MemoryBackend, Backend)
    assert not MemoryBackend.__abstractmethods__


def usable(annotation: Any) -> str:
    """Return why a backend with one parameter of this type cannot be used."""
    body = {"__annotations__": {"volume_size": annotation}, "volume_size": None, "__module__": __name__}
    schema = type("Parameters", (Schema,), body, frozen=True)
    return why_unusable(type("Own", (MemoryBackend,), {"Parameters": schema}))


def test_rules_around_a_type_that_may_be_unset_are_answered_with_the_form_that_works() -> None:
    problem = usable(Annotated[int | None, Doc("bytes", ge=1)])

    assert problem.startswith("Parameters is not a usable schema: field 'volume_size': Can only set `ge`")
    assert problem.endswith("write the rules at the type, and None outside: Annotated[int, Doc(...)] | None")
    assert usable(Annotated[int, Doc("bytes", ge=1)] | None) == ""


def test_a_type_that_no_parameter_can_have_is_named_with_its_field_in_one_line() -> None:
    problem = usable(complex)

    assert problem.startswith("Parameters is not a usable schema: field 'volume_size': ")
    assert "\n" not in problem


def test_a_type_that_does_not_exist_is_named() -> None:
    assert "NoSuchType" in usable("NoSuchType")


def test_a_backend_of_contract_1_1_without_the_secrets_of_its_node_methods_is_told_how_to_write_them() -> None:
    def find_device(self: Any, handle: str) -> None:
        return None

    def keyword(self: Any, handle: str, **more: Any) -> None:
        return None

    assert why_unusable(type("Old", (MemoryBackend,), {"contract": (1, 0), "find_device": find_device})) == ""
    assert why_unusable(type("Open", (MemoryBackend,), {"contract": (1, 1), "find_device": keyword})) == ""

    @functools.wraps(MemoryBackend.find_device)
    def without(self: Any, *handle: str) -> None:
        return None

    @functools.wraps(MemoryBackend.find_device)
    def passes(self: Any, *handle: str, **more: Any) -> None:
        return None

    @functools.wraps(find_device)
    def drops(self: Any, handle: str, secrets: Any = None) -> None:
        return None

    @functools.wraps(find_device)
    def raises(self: Any, *handle: str, **more: Any) -> None:
        return None

    for right in (passes, drops):
        assert why_unusable(type("New", (MemoryBackend,), {"contract": (1, 1), "find_device": right})) == ""
    for wrong in (find_device, without, raises):
        assert why_unusable(type("New", (MemoryBackend,), {"contract": (1, 1), "find_device": wrong})) == (
            "find_device has no parameter 'secrets', which contract 1.1 added; write find_device(self, handle: str, "
            "secrets: Strings = NO_SECRETS), or declare contract = (1, 0)"
        )


def test_growth_only_while_attached_needs_the_feature_attach_and_growth_while_attached() -> None:
    why = "offline is False: volumes that grow only while they are attached need the feature Attach and online"

    assert why_unusable(type("Own", (MemoryBackend,), {"offline": False})) == ""
    assert why_unusable(type("Own", (MemoryBackend,), {"offline": False, "online": False})) == why
    assert why_unusable(type("Own", (OldBackend,), {"offline": False})) == why
    assert why_unusable(type("Own", (MemoryBackend,), {"offline": 0})) == "offline is not a bool"
