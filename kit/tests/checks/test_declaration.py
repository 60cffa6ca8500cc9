"""Backends with wrong declarations or objects that disturb each other, and the checks that find it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import pytest
from csi_multi_testing import check as registry
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import declaration
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage

from csi_multi.contract import Doc, ExpandRequest, Expansion, Page, PageRequest, Schema, Unavailable, Volume
from csi_multi.contract import backend as b
from csi_multi.host.command import LocalHost


class Unborn(MemoryBackend):
    contract = (2, 0)


class Halfway(MemoryBackend):
    """Has a method of a feature that it does not derive from."""

    def node_fact(self) -> str:
        return "fact"


class Replication(b.Backend):
    """A feature that somebody has thought of."""

    @abstractmethod
    def replicate(self, handle: str) -> None: ...


class Replicated(Replication, MemoryBackend):
    def replicate(self, handle: str) -> None:
        """Nobody calls this."""


class Common(b.Backend):
    """What two backends of one author share: nobody's business."""

    @abstractmethod
    def _pool(self) -> str: ...


class Pooled(Common, MemoryBackend):
    def _pool(self) -> str:
        return "pool"


class Loose(MemoryBackend):
    """Answers with a list where the contract has a tuple."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        found = super().list_volumes(page)
        return replace(found, items=list(found.items))  # type: ignore[arg-type]


class Silent(MemoryBackend):
    """Forgets to answer."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        super().expand_volume(request)
        return None  # type: ignore[return-value]


class Undocumented(Schema, frozen=True):
    tier: str = "hdd"
    speed: Annotated[int, Doc("how fast")] = 1


class Wordless(MemoryBackend):
    Parameters = Undocumented  # type: ignore[assignment]


class Eager(MemoryBackend):
    """Looks at the storage before anybody has asked."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.setting.host.run("true")


class Gloomy(MemoryBackend):
    """Is well only the first time."""

    checks = 0

    def check(self) -> None:
        self.checks += 1
        if self.checks > 1:
            raise Unavailable("the session is open already")


class Restless(MemoryBackend):
    """Resumes what is not its own: whatever is there must be left over from a process that died."""

    def resume(self) -> None:
        self.storage.volumes.clear()


class Exclusive(MemoryBackend):
    """Takes the storage down with itself."""

    def close(self) -> None:
        self.storage.volumes.clear()


class Caching(MemoryBackend):
    """Looks at the storage once."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.known = dict(self.storage.volumes)

    def get_volume(self, handle: str) -> Any:
        return self.known[handle] if handle in self.known else super().get_volume(handle) if self.known else None


class Orderly(MemoryBackend):
    """Closes what it has opened, and takes for granted that it has."""

    def close(self) -> None:
        del self.session


def always_the_same() -> Storage:
    """The author keeps one object for all."""
    given = memory.storage()
    only = given.connect(LocalHost())
    return memory.storage(connect=lambda _: only)


BROKEN = [
    (declaration.every_answer_has_the_types_of_the_contract, Loose, "list_volumes.items"),
    (declaration.every_answer_has_the_types_of_the_contract, Silent, "expand_volume"),
    (declaration.the_driver_accepts_the_backend_class, Unborn, "was written for contract (2, 0)"),
    (declaration.the_driver_accepts_the_backend_class, Halfway, "does not derive from NodeFacts"),
    (
        declaration.every_feature_is_known_and_has_checks,
        Replicated,
        "unknown feature: Replication has the abstract methods replicate",
    ),
    (declaration.every_field_of_a_schema_is_described, Wordless, "Parameters.tier has no description"),
    (declaration.the_constructor_makes_no_call_to_the_storage, Eager, "the constructor made 1 calls"),
    (declaration.check_and_resume_succeed_on_a_healthy_storage, Gloomy, "the session is open already"),
    (declaration.check_and_resume_succeed_on_a_healthy_storage, Restless, "does not exist"),
    (declaration.check_and_resume_succeed_on_a_healthy_storage, Exclusive, "does not exist"),
    (declaration.a_second_backend_object_does_not_disturb_the_first, Restless, "does not exist"),
    (declaration.a_second_backend_object_does_not_disturb_the_first, Exclusive, "does not exist"),
    (declaration.a_second_backend_object_does_not_disturb_the_first, Caching, "get_volume"),
    (declaration.a_second_backend_object_does_not_disturb_the_first, always_the_same, "returned the same object twice"),
    (declaration.an_unused_backend_object_can_be_closed, Orderly, "AttributeError"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_base_of_an_authors_own_is_no_feature(judged: Callable[..., Outcome]) -> None:
    outcome = judged(declaration.every_feature_is_known_and_has_checks, Pooled)

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_feature_that_the_kit_cannot_check_is_told(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    for name, one in list(registry.CHECKS.items()):
        if b.Capacity in one.features:
            monkeypatch.delitem(registry.CHECKS, name)

    fails(declaration.every_feature_is_known_and_has_checks, MemoryBackend, "no check for the feature Capacity")
