"""What is advertised follows from the features, obeys the implications of CSI, and is the same in every mode."""

from __future__ import annotations

import itertools
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import Unavailable
from csi_multi.contract import backend as b
from csi_multi.rpc.capabilities import CAPABILITIES, Mode, advertise, reasons_not_advertised

Code = grpc.StatusCode
ALPHA = {
    ("plugin", "SNAPSHOT_METADATA_SERVICE"),
    ("plugin", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"),
    ("controller", "GET_VOLUME"),
    ("controller", "GET_SNAPSHOT"),
    ("controller", "GET_VOLUME_HEALTH"),
    ("controller", "LIST_VOLUME_HEALTH"),
    ("node", "GET_VOLUME_HEALTH"),
    ("node", "GET_STORAGE_HEALTH"),
}


def nothing(*_words: Any, **_fields: Any) -> Any:
    return ()


def kind(*features: type[b.Backend], **extra: Any) -> type[b.Backend]:
    """Return a class with exactly these features, every method of theirs a stub."""
    names = {name for feature in (b.Backend, *features) for name in feature.__abstractmethods__}
    stubs: dict[str, Any] = dict.fromkeys(names, nothing)
    return type(
        "Kind", (*_outermost(features), *(() if features else (b.Backend,))), {**stubs, "contract": (1, 0), **extra}
    )


def _outermost(features: tuple[type[b.Backend], ...]) -> tuple[type[b.Backend], ...]:
    return tuple(one for one in features if not any(one is not two and issubclass(two, one) for two in features))


def offered(*kinds: type[b.Backend], alpha: bool = True) -> Any:
    setting = b.Setting(instance="i", driver="d", cluster="c", node="n", host=None)  # type: ignore[arg-type]
    return advertise([one(None, setting) for one in kinds], Mode.ALL, alpha)


def test_every_capability_is_a_name_of_the_proto() -> None:
    enums = {
        "plugin": pb.PluginCapability.Service.Type,
        "controller": pb.ControllerServiceCapability.RPC.Type,
        "group": pb.GroupControllerServiceCapability.RPC.Type,
        "node": pb.NodeServiceCapability.RPC.Type,
    }
    for service, name, _feature, alpha in CAPABILITIES:
        assert name in enums[service].keys()  # noqa: SIM118 - a protobuf enum is no mapping
        assert alpha == ((service, name) in ALPHA)


PAIRS = [*((one,) for one in b.FEATURES), *itertools.combinations(b.FEATURES, 2), b.FEATURES, ()]


@pytest.mark.parametrize("alpha", [True, False])
def test_capabilities_imply_each_other_as_csi_says(alpha: bool) -> None:
    for features in PAIRS:
        found = offered(kind(*features), alpha=alpha)
        names = found.names
        for name, needs in [
            (("controller", "LIST_VOLUMES_PUBLISHED_NODES"), ("controller", "PUBLISH_UNPUBLISH_VOLUME")),
            (("controller", "PUBLISH_READONLY"), ("controller", "PUBLISH_UNPUBLISH_VOLUME")),
            (("controller", "LIST_VOLUME_HEALTH"), ("controller", "GET_VOLUME_HEALTH")),
            (("controller", "LIST_SNAPSHOTS"), ("controller", "CREATE_DELETE_SNAPSHOT")),
            (("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"), ("plugin", "GROUP_CONTROLLER_SERVICE")),
            (("plugin", "GROUP_CONTROLLER_SERVICE"), ("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")),
        ]:
            assert name not in names or needs in names, (features, name)
        assert ("plugin", "CONTROLLER_SERVICE") in names
        growing = ("controller", "EXPAND_VOLUME") in names
        assert (found.online_expansion or found.unpublished_expansion) == growing == (b.Expand in features)
        assert growing == (("node", "EXPAND_VOLUME") in names)
        placed = bool({b.Topology, b.NodeLocal} & set(features))
        assert placed == (("plugin", "VOLUME_ACCESSIBILITY_CONSTRAINTS") in names)
        assert alpha or not names & ALPHA


def test_the_union_of_instances_is_advertised() -> None:
    found = offered(kind(b.Clone), kind(b.Capacity), kind(b.Expand, online=False), kind(b.Expand))

    assert {("controller", "CLONE_VOLUME"), ("controller", "GET_CAPACITY")} <= found.names
    assert found.online_expansion
    assert found.unpublished_expansion


def test_a_promise_about_published_nodes_is_made_only_when_all_instances_keep_it() -> None:
    """Otherwise an attached volume would be listed as attached to nothing."""
    promise = ("controller", "LIST_VOLUMES_PUBLISHED_NODES")

    assert promise in offered(kind(b.PublishedNodes), kind(b.PublishedNodes)).names
    assert promise not in offered(kind(b.PublishedNodes), kind(b.Attach)).names
    assert promise not in offered(kind(b.PublishedNodes), kind()).names


@pytest.mark.parametrize("alpha", [True, False])
def test_plugin_capabilities_are_the_same_in_every_mode(alpha: bool, serve: Any, make: Any) -> None:
    answers = [serve(make("fast"), mode=mode, alpha=alpha).client.GetPluginCapabilities() for mode in Mode]

    assert answers[0] == answers[1] == answers[2]
    kinds = {
        pb.PluginCapability.Service.Type.Name(one.service.type)
        for one in answers[0].capabilities
        if one.HasField("service")
    }
    assert kinds == {"CONTROLLER_SERVICE", "GROUP_CONTROLLER_SERVICE"} | (
        {"SNAPSHOT_METADATA_SERVICE"} if alpha else set()
    )


@pytest.mark.parametrize(
    ("rpc", "fields"),
    [
        ("ControllerGetVolume", {"volume_id": "fast/v"}),
        ("GetSnapshot", {"snapshot_id": "fast/s"}),
        ("ControllerGetVolumeHealth", {"volume_id": "fast/v"}),
        ("ControllerListVolumeHealth", {}),
        ("NodeGetVolumeHealth", {"volume_id": "fast/v"}),
        ("GetMetadataAllocated", {"snapshot_id": "fast/s"}),
        ("GetMetadataDelta", {"base_snapshot_id": "fast/s", "target_snapshot_id": "fast/s"}),
    ],
)
def test_what_is_alpha_is_off_until_it_is_switched_on(
    rpc: str, fields: Any, serve: Any, make: Any, refused: Any
) -> None:
    off, on = serve(make("fast"), alpha=False), serve(make("fast"), alpha=True)

    assert refused(getattr(off.client, rpc), **fields).code is Code.UNIMPLEMENTED
    if rpc == "ControllerListVolumeHealth":
        assert on.client.ControllerListVolumeHealth() == pb.ControllerListVolumeHealthResponse()
    else:
        assert refused(getattr(on.client, rpc), **fields).code is Code.NOT_FOUND


def test_modes_that_kubernetes_needs_are_on_although_alpha(serve: Any, make: Any) -> None:
    client = serve(make("fast"), alpha=False).client
    name = pb.ControllerServiceCapability.RPC.SINGLE_NODE_MULTI_WRITER

    assert name in [one.rpc.type for one in client.ControllerGetCapabilities().capabilities]
    assert pb.NodeServiceCapability.RPC.SINGLE_NODE_MULTI_WRITER in [
        one.rpc.type for one in client.NodeGetCapabilities().capabilities
    ]


def test_the_plugin_says_who_it_is(serve: Any, make: Any) -> None:
    info = serve(make("fast"), make("slow")).client.GetPluginInfo()

    assert info.name == "multi.csi.example.com"
    assert info.vendor_version
    assert dict(info.manifest) == {"backend.fast": "MemoryBackend", "backend.slow": "MemoryBackend"}


def test_a_hundred_and_fifty_instances_still_fit_into_an_answer(serve: Any, make: Any) -> None:
    served = serve(*(make(f"instance-number-{number:03}") for number in range(150)))

    assert served.client.GetPluginInfo().name


# Broken instances


@pytest.fixture
def half_broken(serve: Any, make: Any) -> Any:
    return serve(make("fast", kind()), broken={"bad": "no library"})


def test_rpcs_of_a_broken_instance_say_that_it_is_broken(half_broken: Any, creation: Any, refused: Any) -> None:
    client = half_broken.client
    for refusal in (
        refused(client.CreateVolume, creation(backend="bad")),
        refused(client.DeleteVolume, volume_id="bad/v"),
        refused(client.ControllerGetVolume, volume_id="bad/v"),
        refused(
            client.NodeStageVolume,
            volume_id="bad/v",
            staging_target_path="/x",
            volume_capability=creation().volume_capabilities[0],
        ),
    ):
        assert refusal.code is Code.UNAVAILABLE
        assert "no library" in refusal.text


def test_an_rpc_that_only_a_broken_instance_may_have_is_not_refused_for_ever(half_broken: Any, refused: Any) -> None:
    """UNIMPLEMENTED is final: the orchestrator would forget a snapshot it has to delete."""
    refusal = refused(half_broken.client.DeleteSnapshot, snapshot_id="bad/s")

    assert refusal.code is Code.UNAVAILABLE
    assert "bad" in refusal.text


def test_a_driver_with_nothing_but_broken_instances_still_answers(
    serve: Any, make: Any, creation: Any, refused: Any
) -> None:
    client = serve(broken={"bad": "no library"}).client

    assert client.Probe().ready.value
    assert client.NodeGetInfo().node_id == "node-1"
    assert refused(client.CreateVolume, creation(backend="bad")).code is Code.UNAVAILABLE
    assert refused(client.DeleteVolume, volume_id="bad/v").code is Code.UNAVAILABLE


def test_an_instance_that_is_down_leaves_probe_and_the_others_alone(
    serve: Any, make: Any, creation: Any, refused: Any
) -> None:
    class Down(MemoryBackend):
        def create_volume(self, request: Any) -> Any:
            raise Unavailable("no route to storage")

        check = get_volume = create_volume

    served = serve(make("fast"), make("gone", Down))
    for instance in served.registry:
        instance.check()

    assert served.client.Probe().ready.value
    assert served.client.CreateVolume(creation()).volume.volume_id == "fast/v"
    assert refused(served.client.CreateVolume, creation(backend="gone")).code is Code.UNAVAILABLE


def test_probe_names_the_instances_that_cannot_serve_and_stays_ready(serve: Any, make: Any) -> None:
    slow = make("slow")
    served = serve(make("fast"), slow, broken={"bad": "no library"})
    slow.down_reason = "its pool is gone"
    with grpc.insecure_channel(served.endpoint) as channel:
        call = channel.unary_unary(
            "/csi.v1.Identity/Probe",
            request_serializer=pb.ProbeRequest.SerializeToString,
            response_deserializer=pb.ProbeResponse.FromString,
        )
        response, told = call.with_call(pb.ProbeRequest(), timeout=5)
        slow.down_reason = ""
        _, later = call.with_call(pb.ProbeRequest(), timeout=5)

    assert response.ready.value
    assert ("csi-multi-degraded", "bad,slow") in told.trailing_metadata()
    assert ("csi-multi-degraded", "bad") in later.trailing_metadata()


def reasons(alpha: bool, **instances: type[b.Backend]) -> dict[str, list[str]]:
    setting = b.Setting(instance="i", driver="d", cluster="c", node="n", host=None)  # type: ignore[arg-type]
    backends = {name: cls(None, setting) for name, cls in instances.items()}
    return reasons_not_advertised(backends, advertise(backends.values(), Mode.ALL, alpha))


def test_what_is_alpha_is_named_with_the_setting_that_advertises_it() -> None:
    found = reasons(False, one=kind(b.VolumeHealthReporter))

    assert "controller GET_VOLUME_HEALTH" in found["alpha in CSI, and driver.alpha is not true"]
    assert reasons(True, one=kind(b.VolumeHealthReporter)) == {}


def test_what_all_instances_must_have_is_named_with_those_that_lack_it() -> None:
    attached = kind(b.Attach, b.ListVolumes, b.PublishedNodes)

    found = reasons(True, one=attached, two=kind(), three=kind(b.Attach))
    assert found == {
        "all instances must have PublishedNodes, and these have not: three, two": [
            "controller LIST_VOLUMES_PUBLISHED_NODES"
        ]
    }
    assert reasons(True, one=attached) == {}


def test_a_topology_that_excludes_no_node_is_named() -> None:
    found = reasons(True, one=kind(b.Topology, everywhere=True))

    assert found == {
        "with this configuration the volumes can be used on every node": ["plugin VOLUME_ACCESSIBILITY_CONSTRAINTS"]
    }


def test_what_no_instance_has_needs_no_reason() -> None:
    assert reasons(True, one=kind()) == {}
