"""Creation and deletion as an orchestrator requests and repeats them: one name, one volume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from csi_multi.contract import NotFound, SizeRange, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext, source
from ..operations.base import attempt, describe_error, retry, wait_until_ready
from ..protocol import VolumeSpec


@check()
def a_volume_can_be_created_found_and_deleted(t: CheckContext) -> None:
    made = t.volume()

    expect_unchanged(t, made, "after create_volume")
    t.client.delete(made.handle)
    with t.refused(NotFound, what="get_volume after delete_volume"):
        t.client.get(made.handle)


def differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    """Yield the difference of each field: two long values next to each other are hard to compare.

    A field that does not count when two of its class are compared is left out.
    """
    if is_dataclass(wanted) and type(found) is type(wanted):
        for field in (one for one in fields(wanted) if one.compare):
            yield from differences(getattr(found, field.name), getattr(wanted, field.name), f"{where}.{field.name}")
    elif isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key in sorted({*found, *wanted}):
            yield from differences(found.get(key), wanted.get(key), f"{where}[{key!r}]")
    elif found != wanted:
        yield f"{where or 'it'} is {found!r}, the contract requires {wanted!r}"


def expect_equal_records(found: Any, wanted: Any, what: str) -> None:
    """Raise CheckFailed unless both are equal."""
    message = "; ".join(differences(found, wanted))
    expect(not message, f"{what}: {message}")


def expect_unchanged(t: CheckContext, volume: Volume, what: str) -> None:
    """Require that a volume has not changed."""
    found, error = attempt(lambda: t.client.get(volume.handle))
    expect(error is None, f"{what}: get_volume({volume.handle!r}) raised {describe_error(error) if error else ''}")
    expect_equal_records(found, volume, f"{what}: get_volume({volume.handle!r})")


def expect_nothing_new(t: CheckContext, before: set[str], what: str) -> None:
    """Require that nothing was created. Deleted resources may still disappear: some systems delete slowly."""
    made = t.new_resources() - before
    expect(not made, f"{what}: new on the storage: {', '.join(sorted(made)[:10])}")


def expect_repeats(t: CheckContext, first: Volume, again: VolumeSpec, what: str) -> None:
    """Require that a request gets the existing volume and creates nothing."""
    before = t.new_resources()
    expect_equal_records(retry(lambda: t.create(again), f"create_volume, {what}"), first, f"create_volume, {what}")
    expect_nothing_new(t, before, f"create_volume, {what}")
    expect_unchanged(t, first, f"create_volume, {what}")


@check()
def a_repeated_request_gets_the_same_volume(t: CheckContext) -> None:
    spec = t.spec()

    expect_repeats(t, t.create(spec), spec, "repeated")


@check()
def a_repeated_request_may_have_a_wider_size_range(t: CheckContext) -> None:
    """csi-spec: the existing volume must be compatible with the request; the requests need not be equal."""
    spec = t.spec()
    made = t.create(spec)

    for what, size in (
        ("a smaller required size", SizeRange(required=1)),
        ("its own size as required size and limit", SizeRange(required=made.size, limit=made.size)),
        ("only a limit, far above its size", SizeRange(limit=4 * made.size)),
        ("no size at all", SizeRange()),
    ):
        expect_repeats(t, made, replace(spec, size=size), f"repeated with {what}")


@check()
def a_repeated_request_may_list_its_parameters_in_another_order(t: CheckContext) -> None:
    spec = t.spec()
    spec = replace(spec, capabilities=spec.capabilities * 2)
    made = t.create(spec)

    once = replace(
        spec,
        capabilities=spec.capabilities[:1],
        parameters=dict(reversed(list(spec.parameters.items()))),
        mutable=dict(reversed(list(spec.mutable.items()))),
    )
    expect_repeats(t, made, once, "repeated with each capability once and parameters in another order")


@check()
def a_name_is_free_again_after_the_deletion(t: CheckContext) -> None:
    name = t.name()
    first = t.volume(name)
    t.client.delete(first.handle)

    what = "create_volume with a name that was used before"
    second = retry(lambda: t.volume(name, first.size + 1), what)

    expect(second.size > first.size, f"{what}: {first.size + 1} bytes requested, got {second!r}")
    expect_unchanged(t, second, what)


@check()
def a_deletion_may_be_repeated(t: CheckContext) -> None:
    """The answer may have been lost: the orchestrator repeats the deletion until it gets one."""
    made = t.volume()

    t.client.delete(made.handle)
    retry(lambda: t.client.delete(made.handle), "delete_volume, repeated")
    with t.refused(NotFound, what="get_volume after delete_volume, twice"):
        t.client.get(made.handle)


def _expect_source_reported(t: CheckContext, of: Volume | Snapshot) -> None:
    copy = t.copy(of)

    same(copy.stamp.source, source(of), "the content source in the answer to create_volume")
    expect_unchanged(t, copy, "a copy")


@check(b.Snapshots)
def a_restored_volume_reports_its_source_snapshot(t: CheckContext) -> None:
    _expect_source_reported(t, wait_until_ready(t, t.snapshot(t.volume())))


@check(b.Clone)
def a_cloned_volume_reports_its_source_volume(t: CheckContext) -> None:
    _expect_source_reported(t, t.volume())
