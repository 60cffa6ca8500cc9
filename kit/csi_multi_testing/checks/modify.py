"""Modification: given parameters change, others stay, an error changes nothing (csi-spec ControllerModifyVolume).

The contract has no method that reads a volume's mutable parameters. A storage may allow few changes of one volume, so
the checks change each volume once, and repeat that request at most.
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

UNKNOWN_PARAMETER = "noSuchParameterOfAnyKind"


def other_parameters(t: CheckContext) -> dict[str, str]:
    """Return the parameters to which a volume is changed."""
    return dict(t.storage.other_mutable or {})


@check(b.Modify, needs=("other_mutable",))
def a_modified_volume_keeps_its_size_stamp_and_data(t: CheckContext) -> None:
    spec = t.spec()
    made = t.create(spec)
    if has_data := not t.no_data_reason():
        t.fill(made, "modified")

    t.client.modify(made.handle, other_parameters(t))
    t.client.modify(made.handle, other_parameters(t))  # the answer may have been lost

    same(t.client.get(made.handle), made, "get_volume after modify_volume: all fields")
    same(t.create(spec), made, "create_volume, repeated after modify_volume")
    if has_data:
        t.expect_filled(made, "modified", made.size, "after modify_volume")


@check(b.Modify, needs=("other_mutable",))
def a_modification_can_be_repeated_after_a_restart(t: CheckContext) -> None:
    made = t.volume()
    t.client.modify(made.handle, other_parameters(t))
    t.client.restart()

    t.client.modify(made.handle, other_parameters(t))

    same(t.client.get(made.handle), made, "get_volume after modify_volume was repeated")


@check(b.Modify, needs=("other_mutable",), target=Target.BACKEND)
def a_modification_reaches_the_storage(t: CheckContext) -> None:
    """If the kit records calls of a creation, it must record calls of a modification too."""
    with t.injector.inject(0):
        made = t.volume()
    creation_calls = t.injector.calls

    with t.injector.inject(0):
        t.client.modify(made.handle, other_parameters(t))

    text = f"modify_volume to {other_parameters(t)} made no call through the boundary"
    made_calls = f"create_volume made {len(creation_calls)} calls; so nothing can have changed"
    expect(t.injector.calls or not creation_calls, f"{text}, {made_calls}")


@check(b.Modify, needs=("other_mutable",))
def a_deleted_volume_cannot_be_modified(t: CheckContext) -> None:
    made = t.volume()
    t.client.delete(made.handle)

    with t.refused(NotFound, what="modify_volume of a volume that was deleted"):
        t.client.modify(made.handle, other_parameters(t))


@check(b.Modify, needs=("other_mutable",))
def a_modification_with_an_unknown_parameter_changes_nothing(t: CheckContext) -> None:
    made = t.volume()

    with t.refused(
        InvalidArgument,
        what=f"modify_volume with {other_parameters(t)} and {UNKNOWN_PARAMETER!r}, an unknown parameter",
    ):
        t.client.modify(made.handle, {**other_parameters(t), UNKNOWN_PARAMETER: "1"})

    same(t.client.get(made.handle), made, "get_volume after a refused modify_volume")
    t.client.modify(made.handle, other_parameters(t))  # the refused request has not changed the volume


@check(b.Modify, target=Target.BACKEND)
def a_mutable_parameter_has_no_default_of_its_own(t: CheckContext) -> None:
    """A field with a default would be set by every modification that omits it."""
    schema = type(t.backend).MutableParameters
    expect(fields(schema), "MutableParameters has no field, so modify_volume cannot change anything")
    for field in fields(schema):
        name = f"MutableParameters.{field.name} ({camel(field.name)!r})"
        expect(not field.required, f"{name} is required: then every modification must set it")
        default: Any = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        unset = default is None or default is msgspec.UNSET or default in ({}, (), [])
        text = f"{name} has the default {default!r}, so a modification of another field resets this one"
        expect(unset, f"{text}: use None as the default, and apply the real default in create_volume")
