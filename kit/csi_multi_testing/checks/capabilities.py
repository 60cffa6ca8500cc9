"""How volumes may be used: what the backend says it cannot do is refused, the rest is kept on the volume."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import AccessMode, Capability, InvalidArgument, Mount, StorageError, Volume
from csi_multi.contract.params import parse
from csi_multi.core.idempotent import FS_TYPE

from ..assertions import CheckSkipped, expect
from ..check import check
from ..context import CheckContext
from ..operations.base import describe_error
from ..protocol import BLOCK, Target, VolumeSpec
from .conflicts import conflict
from .creation import nothing_new, repeats

EVERY = tuple(Capability(mode=mode, mount=mount) for mode in AccessMode for mount in (None, Mount()))


def words(capability: Capability) -> str:
    return f"{capability.mode.name} as {'a raw block device' if capability.block else 'a filesystem'}"


def mounted(t: CheckContext, fs_type: str = "") -> Capability:
    return replace(t.storage.capability or BLOCK, mount=Mount(fs_type=fs_type))


def made_or_skipped(t: CheckContext, spec: VolumeSpec) -> Volume:
    """Make a volume for a use that not every backend allows."""
    try:
        return t.create(spec)
    except InvalidArgument as error:
        raise CheckSkipped(f"no volume can be used as {words(spec.capabilities[0])}: {error}") from None


@check(target=Target.BACKEND)
def an_unsupported_use_has_a_reason_in_words(t: CheckContext) -> None:
    """`unsupported` answers for every use, with and without parameters, and agrees with `access_modes`."""
    own = parse(type(t.backend).Parameters, t.storage.parameters, "parameters")
    for capability in EVERY:
        for parameters in (None, own):
            said = t.backend.unsupported(capability, parameters)
            what = f"unsupported({words(capability)}, {parameters!r})"
            expect(
                isinstance(said, str),
                f"{what}: answered {said!r}, the contract requires a text, empty for what is fine",
            )
            if capability.mode not in t.backend.access_modes:
                expect(said, f"{what}: answered '', but the mode is not in access_modes")


@check(target=Target.BACKEND)
def every_declared_access_mode_has_a_supported_use(t: CheckContext) -> None:
    """As a filesystem or as a raw block device, as far as is known before the parameters are."""
    for mode in t.backend.access_modes:
        said = [t.backend.unsupported(one) for one in EVERY if one.mode is mode]
        expect(not all(said), f"{mode.name} is in access_modes, but unsupported refuses every use of it: {said}")


@check()
def an_unsupported_use_is_refused_before_anything_is_created(t: CheckContext) -> None:
    """Every use is made possible or refused as InvalidArgument; what is made can be had again."""
    for mode in (AccessMode.MULTI_NODE_MULTI_WRITER, AccessMode.SINGLE_NODE_READER_ONLY):
        for mount in (None, Mount()):
            spec = t.spec(capability=Capability(mode=mode, mount=mount))
            what = f"create_volume for {words(spec.capabilities[0])}"
            before = t.new()
            try:
                made = t.create(spec)
            except StorageError as error:
                told = f"{what}: raised {describe_error(error)}, the contract requires InvalidArgument for what is unsupported"
                expect(isinstance(error, InvalidArgument), told)
                nothing_new(t, before, f"{what}: refused, but")
                continue
            repeats(t, made, spec, f"repeated for {words(spec.capabilities[0])}")
            t.client.delete(made.handle)
            t.forget(made)


@check()
def a_volume_keeps_the_filesystem_type_it_was_created_for(t: CheckContext) -> None:
    spec = t.spec(capability=mounted(t))
    made = made_or_skipped(t, spec)

    context = dict(made.stamp.context)
    expect(
        context.get(FS_TYPE),
        f"create_volume: the context {context!r}, the contract requires the stamp's, with {FS_TYPE}",
    )
    repeats(t, made, spec, "repeated for a filesystem")


@check()
def a_block_volume_and_a_filesystem_volume_of_one_name_conflict(t: CheckContext) -> None:
    block, filesystem = replace(t.storage.capability or BLOCK, mount=None), mounted(t)
    specs = [t.spec(capability=wanted) for wanted in (block, filesystem)]
    made = [made_or_skipped(t, spec) for spec in specs]

    for spec, volume, other in zip(specs, made, (filesystem, block), strict=True):
        again = replace(spec, capabilities=(other,))
        conflict(t, spec, volume, again, f"for {words(other)}, where one for {words(spec.capabilities[0])} is")


@check()
def another_filesystem_under_a_taken_name_is_a_conflict(t: CheckContext) -> None:
    spec = t.spec(capability=mounted(t, "ext4"))
    made = made_or_skipped(t, spec)

    conflict(t, spec, made, replace(spec, capabilities=(mounted(t, "xfs"),)), "for xfs instead of ext4")
