"""The declarations of a backend class, and the life of its objects: constructor, check, resume, close."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from csi_multi.contract import backend as b
from csi_multi.contract.params import describe
from csi_multi.host.command import LocalHost
from csi_multi.loading.backend_proxy import BackendProxy
from csi_multi.loading.backend_validation import SCHEMAS, why_unusable

from ..assertions import CheckFailed, expect, same
from ..check import CHECKS, check
from ..context import CheckContext
from ..lifecycle import Lifecycle
from ..protocol import Target


@check(target=Target.BACKEND)
def the_driver_accepts_the_backend_class(t: CheckContext) -> None:
    kind = type(t.backend)

    reason = why_unusable(kind)

    expect(not reason, f"{kind.__name__} {reason}")


def features_in(kind: type) -> Iterator[tuple[type[b.Backend], list[str]]]:
    """Yield the classes with abstract methods beyond Backend's, and these methods. Private ones are the author's."""
    for one in kind.__mro__:
        if issubclass(one, b.Backend) and one not in (b.Backend, *b.TOOLS):
            abstract = [name for name, value in vars(one).items() if getattr(value, "__isabstractmethod__", False)]
            own = [name for name in abstract if not name.startswith("_") and not hasattr(b.Backend, name)]
            if own or one in b.FEATURES:
                yield one, own


@check(target=Target.BACKEND)
def every_feature_is_known_and_has_checks(t: CheckContext) -> None:
    covered = {feature for one in CHECKS.values() for feature in one.features}
    for feature, methods in features_in(type(t.backend)):
        name = feature.__name__
        expect(
            feature in b.FEATURES,
            f"unknown feature: {name} has the abstract methods {', '.join(methods)}, which the driver never calls; "
            "csi_multi.contract.FEATURES has the features; begin abstract methods of your own base class with _",
        )
        expect(feature in covered, f"the kit has no check for the feature {name}; install a newer csi-multi-testing")


class CheckedBackend(BackendProxy):
    """The driver's check of a backend's answers; a wrong answer fails the check."""

    def invalid_response(self, name: str, problem: str) -> NoReturn:
        self.first = getattr(self, "first", f"{name}{problem}")
        raise CheckFailed(f"{self.first}: the driver refuses such an answer")


@check(target=Target.BACKEND)
def every_answer_has_the_types_of_the_contract(t: CheckContext) -> None:
    kind = type(t.backend)
    CheckedBackend("kit", kind.__name__, kind.__module__, unshared=True).install(t.backend)

    Lifecycle(t, lambda: None).run()


@check(target=Target.BACKEND)
def every_field_of_a_schema_is_described(t: CheckContext) -> None:
    for name in SCHEMAS:
        for field, _, _, text in describe(getattr(type(t.backend), name)):
            expect(
                text.strip(),
                f"{name}.{field} has no description, which the documentation shows; add Annotated[..., Doc('...')]",
            )


@check(target=Target.BACKEND)
def the_constructor_makes_no_call_to_the_storage(t: CheckContext) -> None:
    with t.injector.inject(0):
        t.storage.connect(t.injector.host(LocalHost()))
    calls = t.injector.calls

    text = f"the constructor made {len(calls)} calls through the boundary ({', '.join(calls[:3])})"
    expect(not calls, f"{text}: with a storage that is down, the whole driver would not start")


@check(target=Target.BACKEND)
def check_and_resume_succeed_on_a_healthy_storage(t: CheckContext) -> None:
    new: Any = t.storage.connect(LocalHost())
    try:
        for method in ("check", "resume", "check", "resume", "check"):
            same(getattr(new, method)(), None, method)
        made = t.volume()
        same(new.get_volume(made.handle), t.client.get(made.handle), "get_volume of an object after check and resume")
        for method in ("check", "resume"):
            getattr(new, method)()
    finally:
        new.close()
    same(t.client.get(made.handle), made, "get_volume after check, resume and close of another object")


@check(target=Target.BACKEND)
def a_second_backend_object_does_not_disturb_the_first(t: CheckContext) -> None:
    """A new process may start while the old one still runs, or run in another replica."""
    first = t.volume()
    if has_data := not t.no_data_reason():
        t.fill(first, "first")
    other: Any = t.storage.connect(LocalHost())
    expect(other is not t.backend, "Storage.connect returned the same object twice; it must return a new one each time")

    other.resume()
    second = t.volume()
    same(other.get_volume(second.handle), second, "get_volume of a second object, of a volume that the first one made")
    other.close()

    for made in (first, second):
        same(t.client.get(made.handle), made, "get_volume after a second object was closed")
    t.backend.check()
    if has_data:
        t.expect_filled(first, "first", first.size, "after a second object was used and closed")


@check(target=Target.BACKEND)
def an_unused_backend_object_can_be_closed(t: CheckContext) -> None:
    new: Any = t.storage.connect(LocalHost())

    same(new.close(), None, "close of an object that was never used")
