"""Which of the kernel's mappings show an image of the instance."""

from __future__ import annotations

from pathlib import Path

import pytest
from csi_multi_rbd import krbd

from .fake_node import FSID, OURS, FakeKernel, config

OTHER = "99999999-2222-3333-4444-555555555555"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def test_a_mapping_is_found_and_all_that_makes_it_ours_is_its_proof(kernel: FakeKernel) -> None:
    disk = kernel.krbd("v", "abc", place="k8s/team")

    (found,) = krbd.find(kernel, config(namespace="team"), "v")
    assert (found.kind, found.disk, found.number, found.image_id, found.client) == ("krbd", disk, "253:0", "abc", OURS)
    assert found.proof == {
        "device/cluster_fsid": FSID,
        "device/pool": "k8s",
        "device/pool_ns": "team",
        "device/name": "v",
        "device/image_id": "abc",
        "device/current_snap": "-",
    }


def test_without_a_namespace_the_proof_has_none(kernel: FakeKernel) -> None:
    kernel.krbd("v", "abc")
    (found,) = krbd.find(kernel, config(), "v")
    assert "device/pool_ns" not in found.proof


def test_images_of_other_names_places_and_clusters_and_snapshots_are_not_ours(kernel: FakeKernel) -> None:
    kernel.krbd("v2", "a")
    kernel.krbd("v", "a", fsid=OTHER)
    kernel.krbd("v", "a", place="other/")
    kernel.krbd("v", "a", place="k8s/team")
    kernel.krbd("v", "a", current_snap="s1")
    assert list(krbd.find(kernel, config(), "v")) == []


def test_a_mapping_that_is_on_its_way_off_is_none(kernel: FakeKernel) -> None:
    disk = kernel.krbd("v", "a")
    (kernel.sys / "block" / disk / "dev").unlink()
    assert list(krbd.find(kernel, config(), "v")) == []


@pytest.mark.parametrize(
    ("monitors", "version"),
    [
        (["10.0.0.1"], 1),
        (["10.0.0.1:6789"], 1),
        (["mon.example.com"], 1),
        (["[fd00::1]"], 1),
        (["[fd00::1]:6789"], 1),
        (["v1:10.0.0.1:7000"], 1),
        (["[v2:10.0.0.1:3300,v1:10.0.0.1:6789]"], 1),
        (["v2:10.0.0.1:3300", "10.0.0.2"], 1),
        (["v2:10.0.0.1:3300"], 2),
        (["10.0.0.1:3300"], 2),
        (["10.0.0.1:3300/0"], 2),
        (["[fd00::1]:3300"], 2),
        (["10.0.0.1:12345"], 2),  # rbd takes it so
        (["[v2:10.0.0.1:3300]", "v2:10.0.0.2:3300"], 2),
    ],
)
def test_the_kernel_is_told_to_speak_version_2_where_no_monitor_has_version_1(
    monitors: list[str], version: int
) -> None:
    assert ("ms_mode=prefer-crc" in krbd.map_options(monitors, ())) == (version == 2)
    assert "ms_mode=prefer-crc" not in krbd.map_options(monitors, ("ms_mode=secure",))


def test_a_mapping_has_a_connection_of_its_own_unless_a_class_wants_it_otherwise() -> None:
    assert krbd.map_options(["10.0.0.1"], ("a",)) == ("noudev", "noshare", "a")
    assert krbd.map_options(["10.0.0.1"], ("share",)) == ("noudev", "share")


def test_the_kernel_reads_from_the_nearest_copy_where_the_location_is_known() -> None:
    near = ("read_from_replica=localize", "crush_location=zone:a")

    assert krbd.map_options(["10.0.0.1"], (), "zone:a") == ("noudev", "noshare", *near)
    assert krbd.map_options(["10.0.0.1"], ("read_from_replica=no",), "zone:a")[-1] == "read_from_replica=no"
