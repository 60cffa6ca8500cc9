"""Volume capabilities: an unsupported one is refused, a supported one is stored with the volume."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import AccessMode, Capability, InvalidArgument, Mount, StorageError, Volume
from csi_multi.contract.params import parse
from csi_multi.core.filesystems import FS_TYPE

from ..assertions import CheckSkipped, expect
from ..check import check
from ..context import CheckContext
from ..operations.base import describe_error
from ..protocol import BLOCK, Target, VolumeSpec
from .conflicts import expect_conflict
from .creation import expect_nothing_new, expect_repeats

ALL_USES = tuple(Capability(mode=mode, mount=mount) for mode in AccessMode for mount in (None, Mount()))


def describe_use(capability: Capability) -> str:
    return f"{capability.mode.name} as {'a raw block device' if capability.block else 'a filesystem'}"


def filesystem_use(t: CheckContext, fs_type: str = "") -> Capability:
    return replace(t.storage.capability or BLOCK, mount=Mount(fs_type=fs_type))


def create_or_skip(t: CheckContext, spec: VolumeSpec) -> Volume:
    """Create a volume for a use that not every backend supports. Raises CheckSkipped."""
    try:
        return t.create(spec)
    except InvalidArgument as error:
        raise CheckSkipped(f"the backend supports no volume as {describe_use(spec.capabilities[0])}: {error}") from None


@check(target=Target.BACKEND)
def an_unsupported_use_has_a_reason_in_words(t: CheckContext) -> None:
    """`unsupported` works for every use, with and without parameters, and agrees with `access_modes`."""
    own = parse(type(t.backend).Parameters, t.storage.parameters, "parameters")
    for capability in ALL_USES:
        for parameters in (None, own):
            reason = t.backend.unsupported(capability, parameters)
            what = f"unsupported({describe_use(capability)}, {parameters!r})"
            expect(
                isinstance(reason, str),
                f"{what}: answered {reason!r}, the contract requires a str, empty for a supported use",
            )
            if capability.mode not in t.backend.access_modes:
                expect(reason, f"{what}: answered '', but the mode is not in access_modes")


@check(target=Target.BACKEND)
def every_declared_access_mode_has_a_supported_use(t: CheckContext) -> None:
    """As a filesystem or as a raw block device, without parameters."""
    for mode in t.backend.access_modes:
        reason = [t.backend.unsupported(one) for one in ALL_USES if one.mode is mode]
        expect(
            not all(reason), f"{mode.name} is in access_modes, but unsupported() refuses every use with it: {reason}"
        )


@check()
def an_unsupported_use_is_refused_before_anything_is_created(t: CheckContext) -> None:
    """Every use is served or refused with InvalidArgument; a repeated request gets the same volume."""
    for mode in (AccessMode.MULTI_NODE_MULTI_WRITER, AccessMode.SINGLE_NODE_READER_ONLY):
        for mount in (None, Mount()):
            spec = t.spec(capability=Capability(mode=mode, mount=mount))
            what = f"create_volume for {describe_use(spec.capabilities[0])}"
            before = t.new_resources()
            try:
                made = t.create(spec)
            except StorageError as error:
                message = f"{what}: raised {describe_error(error)}, the contract requires InvalidArgument"
                expect(isinstance(error, InvalidArgument), message)
                expect_nothing_new(t, before, f"{what}: refused, but")
                continue
            expect_repeats(t, made, spec, f"repeated for {describe_use(spec.capabilities[0])}")
            t.delete(made)


@check()
def a_volume_keeps_the_filesystem_type_it_was_created_for(t: CheckContext) -> None:
    spec = t.spec(capability=filesystem_use(t))
    made = create_or_skip(t, spec)

    context = dict(made.stamp.context)
    expect(
        context.get(FS_TYPE),
        f"create_volume: the context {context!r}, the contract requires the context of the stamp, with {FS_TYPE}",
    )
    expect_repeats(t, made, spec, "repeated for a filesystem")


@check()
def a_block_volume_and_a_filesystem_volume_of_one_name_conflict(t: CheckContext) -> None:
    block, filesystem = replace(t.storage.capability or BLOCK, mount=None), filesystem_use(t)
    specs = [t.spec(capability=wanted) for wanted in (block, filesystem)]
    made = [create_or_skip(t, spec) for spec in specs]

    for spec, volume, other in zip(specs, made, (filesystem, block), strict=True):
        again = replace(spec, capabilities=(other,))
        expect_conflict(
            t,
            spec,
            volume,
            again,
            f"for {describe_use(other)}, where one for {describe_use(spec.capabilities[0])} exists",
        )


@check()
def another_filesystem_under_a_taken_name_is_a_conflict(t: CheckContext) -> None:
    spec = t.spec(capability=filesystem_use(t, "ext4"))
    made = create_or_skip(t, spec)

    expect_conflict(t, spec, made, replace(spec, capabilities=(filesystem_use(t, "xfs"),)), "for xfs instead of ext4")
