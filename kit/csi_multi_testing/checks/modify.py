"""Modification: what is set changes, the rest stays, a mistake changes nothing (csi-spec ControllerModifyVolume).

What a volume's mutable parameters are now, no answer of the contract tells. A storage may allow few
changes of one volume, so every volume here gets one, repeated at most.
"""

from __future__ import annotations

from typing import Any

import msgspec

from csi_multi.contract import InvalidArgument, NotFound
from csi_multi.contract import backend as b
from csi_multi.contract.params import camel, fields

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..protocol import Target

ODD = "noSuchParameterOfAnyKind"


def other(t: CheckContext) -> dict[str, str]:
    """Return the parameters that a volume is to have instead."""
    return dict(t.storage.other_mutable or {})


@check(b.Modify, needs=("other_mutable",))
def a_modified_volume_keeps_its_size_stamp_and_data(t: CheckContext) -> None:
    spec = t.spec()
    made = t.create(spec)
    if seen := not t.no_data():
        t.fill(made, "modified")

    t.client.modify(made.handle, other(t))
    t.client.modify(made.handle, other(t))  # the answer may have been lost

    same(t.client.get(made.handle), made, "get_volume after modify_volume: size, stamp and all")
    same(t.create(spec), made, "create_volume, repeated after modify_volume")
    if seen:
        t.expect_filled(made, "modified", made.size, "after modify_volume")


@check(b.Modify, needs=("other_mutable",))
def a_modification_can_be_repeated_after_a_restart(t: CheckContext) -> None:
    made = t.volume()
    t.client.modify(made.handle, other(t))
    t.client.restart()

    t.client.modify(made.handle, other(t))

    same(t.client.get(made.handle), made, "get_volume after modify_volume was repeated")


@check(b.Modify, needs=("other_mutable",), target=Target.BACKEND)
def a_modification_reaches_the_storage(t: CheckContext) -> None:
    """As far as the kit sees the boundary: a creation must have been seen there, too."""
    with t.injector.inject(0):
        made = t.volume()
    seen = t.injector.calls

    with t.injector.inject(0):
        t.client.modify(made.handle, other(t))

    text = f"modify_volume to {other(t)} made no call through the boundary, where create_volume made {len(seen)}"
    expect(t.injector.calls or not seen, f"{text}: nothing can have changed")


@check(b.Modify, needs=("other_mutable",))
def a_deleted_volume_cannot_be_modified(t: CheckContext) -> None:
    made = t.volume()
    t.client.delete(made.handle)

    with t.refused(NotFound, what="modify_volume of a volume that was deleted"):
        t.client.modify(made.handle, other(t))


@check(b.Modify, needs=("other_mutable",))
def a_modification_with_an_unknown_parameter_changes_nothing(t: CheckContext) -> None:
    made = t.volume()

    with t.refused(InvalidArgument, what=f"modify_volume with {other(t)} and {ODD!r}, which nobody knows"):
        t.client.modify(made.handle, {**other(t), ODD: "1"})

    same(t.client.get(made.handle), made, "get_volume after a refused modify_volume")
    t.client.modify(made.handle, other(t))  # the refusal did not spoil the volume


@check(b.Modify, target=Target.BACKEND)
def a_mutable_parameter_has_no_default_of_its_own(t: CheckContext) -> None:
    """With a default of its own, a field looks set in every modification, and is reset by it."""
    schema = type(t.backend).MutableParameters
    expect(fields(schema), "MutableParameters has no field: what could modify_volume change?")
    for field in fields(schema):
        name = f"MutableParameters.{field.name} ({camel(field.name)!r})"
        expect(not field.required, f"{name} is required: every modification would have to set it")
        default: Any = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        unset = default is None or default is msgspec.UNSET or default in ({}, (), [])
        text = f"{name} has the default {default!r}, so that who sets another field resets this one"
        expect(unset, f"{text}: let it be None, and put the default where volumes are made")
