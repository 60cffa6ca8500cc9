"""Hostile requests: hypothesis strategies made from the protobuf descriptors.

    @given(request("CreateVolume"))
    def test_nothing_hostile_is_a_bug(message): ...

Values are of three sorts: valid ones, ones that break the field's rules, and random ones. `known` adds ids and names
that exist, so that requests get past the first check. Needs hypothesis (csi-multi-testing[hypothesis]).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from csi_multi._proto import csi_pb2

Known = Mapping[str, Sequence[str]]  # field name -> values that exist in the driver under test

HOSTILE = (
    *("", "/", "//", "..", "fast/", "/fast", "fast/../slow", "fast//v", "a/b/c", "FAST/v", "fast/\x00", "fast/v\n"),
    *(
        "none-exist-id",
        "invalid-token",
        "\x00",
        "\x1b[31m",
        "a\tb",
        "a\rb\n",
        "\x7f",
        "\x85",
        "%s%n{}",
        "'; --",
        "$(id)",
    ),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "/srv/../etc",
        "relative/path",
        "/a\x00b",
        "/" + "x" * 300,
        "é" * 64,
        "é" * 65,
    ),
    *(
        "💾" * 32,
        "💾" * 33,
        "x" * 128,
        "x" * 129,
        "x" * 5000,
        "\u202e",
        "\ufeff",
        "\ufffe",
        "node-1;=;",
        "node-1;cloud=i-0",
    ),
)
NUMBERS = (0, 1, -1, 4095, 4096, 4097, 1 << 20, 1 << 30, 1 << 50, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
KNOWN: Known = {
    "volume_id": ("fast/v", "slow/v", "fast/absent"),
    "source_volume_id": ("fast/v", "slow/v"),
    "source_volume_ids": ("fast/v", "fast/w", "slow/v"),
    "snapshot_id": ("fast/s", "slow/s"),
    "snapshot_ids": ("fast/g-0", "fast/s"),
    "base_snapshot_id": ("fast/s", "slow/s"),
    "target_snapshot_id": ("fast/s", "slow/s"),
    "group_snapshot_id": ("fast/g",),
    "name": ("v", "s", "g", "new"),
    "node_id": ("node-1", "node-2"),
    "parameters": ("backend", "tier", "blockSize", "fsType"),
    "mutable_parameters": ("iops",),
    "segments": ("multi.csi.example.com/node", "multi.csi.example.com/zone", "other/zone"),
    "starting_token": ("fast/", "slow/v", "fast/v"),
    "fs_type": ("ext4", "xfs", "ntfs"),
}
WORDS = ("fast", "slow", "ssd", "hdd", "4096", "5", "0", "-5", "true", "node-1", "a")


def methods() -> dict[str, MethodDescriptor]:
    """Return all RPCs by name."""
    services = csi_pb2.DESCRIPTOR.services_by_name.values()
    return {method.name: method for service in services for method in service.methods}


def request(rpc: str, known: Known = KNOWN) -> st.SearchStrategy[Any]:
    """Requests of one RPC: half of them hostile in any field, half made of known values."""
    kind = methods()[rpc].input_type
    return message(kind, known) | message(kind, known, hostile=False)


def message(descriptor: Descriptor, known: Known = KNOWN, *, hostile: bool = True) -> st.SearchStrategy[Any]:
    """Messages of one type, each field set or not; the last member of a oneof is kept."""
    made = GetMessageClass(descriptor)
    fields = {field.name: st.none() | _field(field, known, hostile) for field in descriptor.fields}
    return st.fixed_dictionaries(fields).map(
        lambda values: made(**{name: value for name, value in values.items() if value is not None})
    )


def _field(field: FieldDescriptor, known: Known, hostile: bool) -> st.SearchStrategy[Any]:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        keys = st.sampled_from(known.get(field.name, ("key",)))
        values = st.sampled_from(WORDS)
        return st.dictionaries(keys | texts(), values | texts(), max_size=4) if hostile else _small(keys, values)
    one = _scalar(field, known, hostile) if kind is None else message(kind, known, hostile=hostile)
    return st.lists(one, max_size=3) if field.is_repeated else one


def _small(keys: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.just({}) | st.dictionaries(keys, values, max_size=1)


def _scalar(field: FieldDescriptor, known: Known, hostile: bool) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        wanted = st.sampled_from(known.get(field.name, WORDS))
        return wanted | texts() if hostile else wanted
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.integers(0, 8) | st.sampled_from((99, -1, (1 << 31) - 1)) if hostile else st.integers(1, 7)
    bits = 31 if field.type == FieldDescriptor.TYPE_INT32 else 63
    fitting = [number for number in NUMBERS if -(1 << bits) <= number < (1 << bits)]
    if not hostile:
        return st.sampled_from([number for number in fitting if 0 <= number <= 1 << 30])
    return st.sampled_from(fitting) | st.integers(-(1 << bits), (1 << bits) - 1)


def texts() -> st.SearchStrategy[str]:
    """Text that breaks rules, or any text that protobuf accepts (no surrogates)."""
    return st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
