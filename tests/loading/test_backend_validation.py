"""Whether a registered class can be a backend is found from the class alone, with the reason."""

from __future__ import annotations

import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import CONTRACT, Backend, Clone, Expand
from csi_multi.loading.backend_validation import why_unusable


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
