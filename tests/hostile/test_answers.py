"""What a backend answers wrongly is named, for the operator and the caller, and makes nobody forget a volume."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    FEATURES,
    Backend,
    Blank,
    BlockMap,
    CapacityReport,
    Device,
    Extent,
    NodeFacts,
    Page,
    Stamp,
    Volume,
)
from csi_multi.loading import response_check
from csi_multi.loading.backend_proxy import contract_methods

Code = grpc.StatusCode
OURS = Stamp(driver="multi.csi.example.com", cluster="default", name="n", digest="d")
GOOD = Volume(handle="v", size=1, stamp=OURS)


class Liar(MemoryBackend):
    """Answers what a test puts into `lies`, by method."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.lies: dict[str, Any] = {}

    def told(self, name: str, *words: Any) -> Any:
        truth = getattr(MemoryBackend, name)(self, *words)
        return self.lies[name](truth) if name in self.lies else truth


def _lying(name: str) -> Any:
    return lambda self, *words: self.told(name, *words)


for _name in (
    *("create_volume", "get_volume", "find_volume", "delete_volume", "expand_volume", "attach", "capacity"),
    *("create_snapshot", "get_snapshot", "list_volumes", "allocated_blocks", "unsupported", "detach"),
):
    setattr(Liar, _name, _lying(_name))


class Odd(Mapping[str, str]):
    """A mapping that cannot be looked at."""

    def __getitem__(self, key: str) -> str:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise SystemExit("no")

    def __len__(self) -> int:
        return 1


VOLUMES = {
    "nothing": (lambda _: None, " is None, not a Volume"),
    "a class of another shape": (lambda _: SimpleNamespace(handle="v"), " is a SimpleNamespace, not a Volume"),
    "a coroutine's word": (lambda v: {"handle": v.handle}, " is a dict, not a Volume"),
    "a long handle": (lambda v: replace(v, handle="h" * 200), ".handle has 200 bytes; at most 107 are allowed"),
    "a long handle in few letters": (lambda v: replace(v, handle="é" * 100), ".handle has 200 bytes"),
    "an empty handle": (lambda v: replace(v, handle=""), ".handle is empty"),
    "a number as handle": (lambda v: replace(v, handle=7), ".handle is int 7, not a str"),
    "a line break in a handle": (lambda v: replace(v, handle="a\nb"), ".handle str 'a\\nb' contains a control"),
    "a surrogate": (lambda v: replace(v, handle="\udcff"), ".handle is str '\\udcff', which UTF-8 cannot encode"),
    "a negative size": (lambda v: replace(v, size=-1), ".size is int -1, not a whole number"),
    "a truth as size": (lambda v: replace(v, size=True), ".size is bool True"),
    "half a byte": (lambda v: replace(v, size=0.5), ".size is a float"),
    "a size beyond the wire": (lambda v: replace(v, size=1 << 63), ".size is int beyond 64 bits"),
    "no stamp": (lambda v: replace(v, stamp=None), ".stamp is None, not a Stamp"),
    "a stranger's stamp": (lambda v: replace(v, stamp=replace(v.stamp, driver="x")), "to driver 'x'"),
    "another cluster's": (lambda v: replace(v, stamp=replace(v.stamp, cluster="x")), "cluster 'x', not to ours"),
    "another stamp": (
        lambda v: replace(v, stamp=replace(v.stamp, digest="x")),
        ".stamp is not the stamp of the request",
    ),
    "a number in the context": (
        lambda v: replace(v, stamp=replace(v.stamp, context={"a": 1})),
        ".stamp.context[str 'a'] is int 1, not a str",
    ),
    "a mapping that raises": (lambda v: replace(v, topology=(Odd(),)), " cannot be read: SystemExit"),
    "a list of places": (lambda v: replace(v, topology=[{}]), ".topology is a list, not a tuple"),
    "a list of pairs": (lambda v: replace(v, topology=((("a", "b"),),)), ".topology[0] is a tuple, not a mapping"),
    "a generator of nodes": (lambda v: replace(v, published_nodes=(n for n in "ab")), ".published_nodes is a gen"),
    "a node that is no text": (lambda v: replace(v, published_nodes=(b"n",)), ".published_nodes[0] is a bytes"),
    "a topology that CSI forbids": (lambda v: replace(v, topology=({"zone": "a b"},)), "is not a topology value"),
}


@pytest.mark.parametrize("lie", VOLUMES)
def test_a_volume_that_cannot_be_is_refused_with_what_is_wrong_and_is_not_forgotten(
    lie: str, beside: Any, wanted: Any, refused: Any, serves: Any, errors: Any
) -> None:
    change, words = VOLUMES[lie]
    served = beside(Liar)
    served.backend("bad").lies["create_volume"] = change

    refusal = refused(served.client.CreateVolume, **wanted("v"))

    assert refusal.code is Code.UNAVAILABLE, "a final code would make the orchestrator forget what was made"
    assert words in refusal.text
    (line,) = errors()
    assert words.strip() in line["problem"]
    if lie != "a topology that CSI forbids":
        assert refusal.text.startswith(
            "backend 'bad' (module tests.hostile.test_answers) returned an invalid response: create_"
        )
        assert (line["instance"], line["kind"], line["method"]) == ("bad", "Liar", "create_volume")
    serves(served.client)
    del served.backend("bad").lies["create_volume"]
    assert served.client.CreateVolume(**wanted("v")).volume.volume_id == "bad/v", "the retry finds what was made"


OTHERS = {
    "DeleteVolume": ("delete_volume", lambda _: False, " is bool False, but the method returns None"),
    "ControllerExpandVolume": ("expand_volume", lambda one: replace(one, node_required=1), ".node_required is int 1"),
    "ControllerPublishVolume": ("attach", lambda _: None, " is None, not a mapping of str to str"),
    "ControllerUnpublishVolume": ("detach", lambda _: "ok", " is str 'ok'"),
    "CreateSnapshot": (
        "create_snapshot",
        lambda one: replace(one, created=one.created.replace(tzinfo=None)),
        ".created has no time zone",
    ),
    "GetSnapshot": ("get_snapshot", lambda one: replace(one, ready="yes"), ".ready is str 'yes'"),
    "GetCapacity": ("capacity", lambda _: CapacityReport(available=-5), ".available is int -5"),
    "ValidateVolumeCapabilities": ("unsupported", lambda _: None, " is None, not a str"),
    "ControllerGetVolume": ("get_volume", lambda _: None, " is None, not a Volume"),
    "ListVolumes": ("list_volumes", lambda page: [page], " is a list, not a Page"),
    "GetMetadataAllocated": (
        "allocated_blocks",
        lambda one: replace(one, extents=iter([Extent(offset=0, length=4096), (1, 2)])),
        ".extents: an item is a tuple, not a Extent",
    ),
}
FIELDS: dict[str, dict[str, Any]] = {
    "DeleteVolume": {"volume_id": "bad/v"},
    "ControllerExpandVolume": {
        "volume_id": "bad/v",
        "capacity_range": {"required_bytes": 1 << 31, "limit_bytes": 1 << 31},  # with a limit get_volume is asked too
    },
    "ControllerPublishVolume": {"volume_id": "bad/v", "node_id": "node-1"},
    "ControllerUnpublishVolume": {"volume_id": "bad/v", "node_id": "node-1"},
    "CreateSnapshot": {"name": "t", "source_volume_id": "bad/v"},
    "GetSnapshot": {"snapshot_id": "bad/s"},
    "GetCapacity": {"parameters": {"backend": "bad"}},
    "ValidateVolumeCapabilities": {"volume_id": "bad/v"},
    "ControllerGetVolume": {"volume_id": "bad/v"},
    "ListVolumes": {},
    "GetMetadataAllocated": {"snapshot_id": "bad/s"},
}


@pytest.mark.parametrize("rpc", OTHERS)
def test_whatever_answers_wrongly_is_named(
    rpc: str, beside: Any, wanted: Any, refused: Any, serves: Any, errors: Any
) -> None:
    served = beside(Liar)
    served.client.CreateVolume(**wanted("v"))
    served.client.CreateSnapshot(name="s", source_volume_id="bad/v")
    capability, fields = wanted("v")["volume_capabilities"][0], dict(FIELDS[rpc])
    if rpc == "ValidateVolumeCapabilities":
        fields["volume_capabilities"] = [capability]
    if rpc.endswith("publishVolume"):
        served.client.ControllerPublishVolume(**FIELDS["ControllerPublishVolume"], volume_capability=capability)
    if rpc == "ControllerPublishVolume":
        fields["volume_capability"] = capability
    method, lie, words = OTHERS[rpc]
    served.backend("bad").lies[method] = lie

    refusal = refused(getattr(served.client, rpc), **fields)

    reads = rpc.startswith(("Get", "List", "Validate", "ControllerGet"))
    assert refusal.code is (Code.INTERNAL if reads else Code.UNAVAILABLE)
    assert words in refusal.text
    assert (errors()[0]["instance"], errors()[0]["method"]) == ("bad", method)
    serves(served.client)


@pytest.mark.parametrize(
    ("method", "lie", "words"),
    [
        ("find_volume", lambda one: replace(one, stamp=replace(one.stamp, name="other")), ".stamp.name is 'other'"),
        ("get_volume", lambda one: replace(one, handle="other"), ".handle is 'other', but the request was for 'v'"),
    ],
)
def test_another_volume_than_was_asked_for_is_never_taken_for_it(
    method: str, lie: Any, words: str, beside: Any, wanted: Any, refused: Any
) -> None:
    served = beside(Liar)
    served.client.CreateVolume(**wanted("v"))
    served.backend("bad").lies[method] = lie
    call = served.client.ControllerExpandVolume if method == "get_volume" else served.client.CreateVolume

    refusal = refused(call, **(FIELDS["ControllerExpandVolume"] if method == "get_volume" else wanted("v")))

    assert (refusal.code, words in refusal.text) == (Code.UNAVAILABLE, True)


def test_the_fact_of_a_node_fits_into_its_id(serve: Any, make: Any, refused: Any, serves: Any) -> None:
    class Wordy(MemoryBackend, NodeFacts):
        def node_fact(self) -> str:
            return "a;b=c"

    served = serve(make("bad", Wordy), make("good"))

    assert "node_fact is str 'a;b=c', which does not match [-_.:A-Za-z0-9]+" in refused(served.client.NodeGetInfo).text
    serves(served.client)


def test_a_good_answer_passes_whatever_mapping_it_is_made_of() -> None:
    device = Device(path=Path("/dev/loop0"), number="7:0", proof=MappingProxyType({"a": "b"}), blank=Blank.ZEROED)
    volume = replace(GOOD, topology=(MappingProxyType({"zone": "a"}),), handle="ünïcode 💾")

    assert response_check.check_of_type(Device)(device) == ""
    assert response_check.check_of_type(Page[Volume])(Page(items=(volume,), cursor="x")) == ""
    assert response_check.check_of_method(Backend.find_device)(None) == ""
    assert response_check.check_of_type(BlockMap)(BlockMap(size=1, extents=iter(()))) == ""


@pytest.mark.parametrize("field", ["path", "number", "proof", "blank", "read_only"])
def test_a_device_is_checked_to_its_last_field(field: str) -> None:
    device = Device(path=Path("/dev/loop0"), number="7:0", proof={}, blank=Blank.ZEROED)

    assert response_check.check_of_type(Device)(replace(device, **{field: 7})).startswith(f".{field} is int 7, not ")


def test_everything_that_the_contract_returns_can_be_checked() -> None:
    checked = {name for feature in (Backend, *FEATURES) for name in contract_methods(feature)}

    assert {"create_volume", "list_volume_health", "node_storage_health", "node_segments"} <= checked
    for feature in (Backend, *FEATURES):
        for function in contract_methods(feature).values():
            assert response_check.check_of_method(function)(object()), function


def test_a_type_that_nothing_knows_how_to_check_is_noticed_when_the_contract_gets_it() -> None:
    @dataclasses.dataclass
    class New:
        rate: complex

    with pytest.raises(TypeError, match="no check exists for the contract's type"):
        response_check.check_of_type(New)
