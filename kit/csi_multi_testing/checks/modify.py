"""Modification: given parameters change, others stay, an error changes nothing (csi-spec ControllerModifyVolume).

The contract has no method that reads a volume's mutable parameters; Storage.effect does, where it is given. A storage
may allow few changes of one volume, so the checks change each volume once, and repeat that request at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from csi_multi.contract import RESET, InvalidArgument, NotFound, Snapshot, Volume
from csi_multi.contract import backend as b
from csi_multi.contract.params import camel, fields, parse, resettable

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext
from ..hooks import LIMIT
from ..operations.base import wait_until_ready
from ..operations.effects import expect_same_effect, model_of
from ..protocol import Target
from ..waiting import wait_for
from .sources import expect_success

EFFECT_SECONDS = LIMIT  # until a modification is in force
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


@check(b.Modify, needs=("other_mutable", "effect"))
def a_modification_is_in_force_for_a_volume_that_is_in_use(t: CheckContext) -> None:
    """As for one that was created so, without a new attachment or device, and for no other volume."""
    wanted = {**t.storage.mutable, **other_parameters(t)}
    volume, beside, model = t.volume(), t.volume(), t.volume(mutable=wanted)
    with ExitStack() as uses:
        for one in (volume, beside, model):
            uses.enter_context(in_use(t, one))
        before, in_force = effects(t, (volume, beside), model)

        t.client.modify(volume.handle, other_parameters(t))
        what = f"Storage.effect after modify_volume to {other_parameters(t)}"
        wait_for_effect(t, volume, in_force, f"{what} of a volume that is in use, where it was {before!r}")
        same(effect(t, beside), before, f"{what}, of another volume")
    with in_use(t, volume):
        wait_for_effect(t, volume, in_force, f"{what}, used again")


@contextmanager
def in_use(t: CheckContext, volume: Volume) -> Iterator[None]:
    """Use a volume as a workload does, as far as this machine can: open its device, or attach it."""
    if not t.storage.read and not t.no_data_reason():
        with t.client.device_path(volume.handle):
            yield
    elif b.Attach in t.features and t.storage.nodes:
        t.attach(volume, t.storage.nodes[0])
        yield
        t.client.detach(volume.handle, t.storage.nodes[0])
    else:
        yield


def effect(t: CheckContext, volume: Volume) -> object:
    assert t.storage.effect, "the check needs it"
    return t.storage.effect(volume.handle)


def effects(t: CheckContext, alike: Sequence[Volume], other: Volume) -> tuple[object, object]:
    """Return Storage.effect of volumes that were created alike, and of one with Storage.other_mutable.

    Some storage systems change a volume in the background, a new one too.
    """
    *found, in_force = wait_for(
        lambda: [effect(t, one) for one in (*alike, other)],
        lambda read: all(one == read[0] for one in read[:-1]) and read[0] != read[-1],
        EFFECT_SECONDS,
    )
    for one in found:
        same(one, found[0], "Storage.effect of a volume with Storage.mutable, compared with another one's")
    expect(
        found[0] != in_force,
        f"Storage.effect is {in_force!r} for a volume with Storage.mutable and for one with Storage.other_mutable; "
        "it must tell them apart, or the parameters of create_volume are not in force",
    )
    return found[0], in_force


def wait_for_effect(t: CheckContext, volume: Volume, wanted: object, what: str) -> None:
    found = wait_for(lambda: effect(t, volume), lambda one: one == wanted, EFFECT_SECONDS)
    same(found, wanted, what)


@check(b.Modify, needs=("other_mutable", "effect"))
def a_modification_of_one_parameter_keeps_the_others(t: CheckContext) -> None:
    """A class sets some parameters; the others stay as they are, and do not return to their defaults."""
    start = {**t.storage.mutable, **other_parameters(t)}
    if len(start) < 2:
        raise CheckSkipped(
            "Storage.mutable and Storage.other_mutable name only one parameter; give Storage.other_mutable a second one"
        )
    for name in other_parameters(t):
        change = {name: t.storage.mutable.get(name, start[name])}
        volume, model = t.volume(mutable=start), t.volume(mutable={**start, **change})
        with in_use(t, volume), in_use(t, model):
            t.client.modify(volume.handle, change)
            what = f"Storage.effect of a volume that was made with {start}, after modify_volume to {change}"
            wait_for_effect(t, volume, effect(t, model), what)


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
def a_mutable_parameter_can_be_reset_at_any_time(t: CheckContext) -> None:
    """Also when it has its default, and together with others; users write "default" (contract.RESET)."""
    schema = type(t.backend).MutableParameters
    resets = {camel(name): RESET for name in resettable(schema)}
    if not resets:
        raise CheckSkipped("no field of MutableParameters can be reset (its type has no contract.Reset)")
    changed, fresh = t.volume(mutable=other_parameters(t)), t.volume(mutable={})
    new = expect_success(f"create_volume with {resets}", t.volume, mutable=resets)
    for what, made in (("with other parameters", changed), ("without any", fresh), (f"with {resets}", new)):
        what = f"modify_volume to {resets} of a volume that was made {what}"
        same(t.backend.unmodifiable(made.handle, parse(schema, resets, "kit")), "", f"{what}: unmodifiable")
        expect_success(what, t.client.modify, made.handle, resets)
        same(t.client.get(made.handle), made, f"get_volume after {what}")
    if t.storage.effect:
        rest = {name: value for name, value in other_parameters(t).items() if name not in resets}
        model = t.volume(mutable=rest)
        with in_use(t, changed), in_use(t, model):
            what = f"Storage.effect after modify_volume to {resets}, compared with a volume that was made with {rest}"
            wait_for_effect(t, changed, effect(t, model), what)


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


def _expect_own_parameters(t: CheckContext, source_of: Callable[[Volume], Volume | Snapshot], method: str) -> None:
    """Require what the request of a copy says to be in force for the copy, and nothing else for its source."""
    plain, other = model_of(t, {}), model_of(t, other_parameters(t))
    volume = t.volume()
    copy = t.copy(source_of(volume), mutable={**t.storage.mutable, **other_parameters(t)})

    expect_same_effect(t, copy, other, f"{method} with other mutable parameters than the source has")
    expect_same_effect(t, volume, plain, f"{method} with other mutable parameters, then its source")
    if t.storage.mutable:
        again = t.copy(source_of(copy))
        expect_same_effect(t, again, plain, f"{method} of that volume with those that the first one had")


@check(b.Modify, b.Clone, needs=("other_mutable", "effect"))
def a_clone_has_the_mutable_parameters_of_its_request(t: CheckContext) -> None:
    _expect_own_parameters(t, lambda volume: volume, "clone_volume")


@check(b.Modify, b.Snapshots, needs=("other_mutable", "effect"))
def a_restored_volume_has_the_mutable_parameters_of_its_request(t: CheckContext) -> None:
    _expect_own_parameters(t, lambda volume: wait_until_ready(t, t.snapshot(volume)), "restore_volume")
