"""What a StorageClass asks for, and what its instance makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_rbd.config import Config, Parameters, SnapshotParameters
from csi_multi_rbd.layout import layout, refuse_elsewhere

from csi_multi.contract import InvalidArgument
from csi_multi.contract.params import parse

FSID = "3cb7b59b-9a3d-4b34-9a79-73900f2a06f6"


def config(**values: Any) -> Config:
    return Config(monitors=("10.0.0.1",), fsid=FSID, pool="k8s", user="csi", **values)


def parameters(**given: str) -> Parameters:
    """Parameters as users write them."""
    return parse(Parameters, given, "parameters")


def refused(instance: Config, **given: str) -> str:
    with pytest.raises(InvalidArgument) as found:
        layout(instance, parameters(**given))
    return str(found.value)


def test_without_parameters_an_image_is_as_the_instance_says() -> None:
    found = layout(config(data_pool="ec", image_features=("layering",)), Parameters())

    assert (found.features, found.data_pool) == (("layering",), "ec")
    assert (found.object_size, found.stripe_unit, found.stripe_count) == (0, 0, 0)


def test_what_a_class_says_wins() -> None:
    asked = parameters(
        dataPool="ec2",
        imageFeatures="layering,exclusive-lock",
        objectSize="8388608",
        stripeUnit="65536",
        stripeCount="8",
    )
    found = layout(config(data_pool="ec"), asked)

    assert (found.features, found.data_pool) == (("layering", "exclusive-lock"), "ec2")
    assert (found.object_size, found.stripe_unit, found.stripe_count) == (8388608, 65536, 8)


def test_a_data_pool_that_is_the_pool_itself_is_none_as_ceph_shows_it() -> None:
    assert layout(config(data_pool="ec"), parameters(dataPool="k8s")).data_pool == ""
    assert layout(config(data_pool="k8s"), Parameters()).data_pool == ""


def test_the_instances_own_pool_and_cluster_may_be_named() -> None:
    assert layout(config(), parameters(pool="k8s", clusterID=FSID)) == layout(config(), Parameters())


def test_another_pool_is_another_instance() -> None:
    assert "an instance is one pool" in refused(config(), pool="other")


def test_another_cluster_is_another_instance() -> None:
    said = refused(config(), clusterID="rook-ceph")

    assert "'clusterID' 'rook-ceph' is not the fsid" in said
    assert FSID in said


def test_a_snapshot_class_is_held_against_the_instance_as_well() -> None:
    refuse_elsewhere(config(), parse(SnapshotParameters, {"clusterID": FSID, "pool": "k8s"}, "parameters"))
    with pytest.raises(InvalidArgument, match="an instance is one pool"):
        refuse_elsewhere(config(), parse(SnapshotParameters, {"pool": "other"}, "parameters"))


def test_features_that_do_not_go_together_are_refused() -> None:
    assert "'imageFeatures': 'fast-diff' needs 'object-map'" in refused(config(), imageFeatures="layering,fast-diff")


def test_the_mounter_of_a_class_has_to_suit_the_features_of_the_instance() -> None:
    journaled = config(mounter="rbd-nbd", image_features=("layering", "exclusive-lock", "journaling"))

    assert "journaling" in layout(journaled, Parameters()).features
    assert "'mounter': no kernel can map" in refused(journaled, mounter="rbd")


def test_a_class_may_choose_a_mounter_that_its_features_need() -> None:
    asked = parameters(mounter="rbd-nbd", imageFeatures="layering,exclusive-lock,journaling")

    assert "journaling" in layout(config(), asked).features
