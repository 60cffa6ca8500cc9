"""What `helm test` creates: pods that write and compare, with their claims, and snapshots; without rights; removed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from .conftest import VALUES, Object, render
from .test_schemas import OPERATORS, strange

EBS = "driver: {name: multi.csi.example.com}\nbackends: {cloud: {kind: ebs, region: eu-west-1}}\n"
TWO = {"storageClasses": [{"name": "fast"}, {"name": "large"}], "volumeSnapshotClasses": [{"name": "snap"}]}
Tests = Callable[..., list[Object]]


@pytest.fixture
def tests(helm: str, tmp_path: Path) -> Tests:
    """tests(key=value...) are the objects of `helm test` with these values, in the order of their creation."""

    def objects(**values: object) -> list[Object]:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump({"config": EBS, **values}))
        return in_order(render.__wrapped__(helm, file, tests=True))

    return objects


def in_order(objects: tuple[Object, ...]) -> list[Object]:
    return sorted(objects, key=lambda one: int(one["metadata"]["annotations"]["helm.sh/hook-weight"]))


def names(objects: list[Object]) -> list[str]:
    return [one["metadata"]["name"] for one in objects]


def pods(objects: list[Object]) -> list[Object]:
    return [dict(one["spec"]) for one in objects if one["kind"] == "Pod"]


def without_tests(values: Path) -> bool:
    return not yaml.safe_load(values.read_text()).get("storageClasses")


@pytest.mark.parametrize("values", VALUES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_object_of_the_test_fits_its_schema_and_removes_itself(values: Path, helm: str) -> None:
    if without_tests(values):
        pytest.skip("no class, no test")
    objects = in_order(render(helm, values, tests=True))

    assert strange(yaml.safe_dump_all(objects)) == []
    assert {one["kind"] for one in objects} <= {"Pod", "VolumeSnapshot"}
    for one in objects:
        about = one["metadata"]["annotations"]
        assert about["helm.sh/hook"] == "test"
        assert about["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded,hook-failed"


def test_snapshots_of_the_test_fit_the_operators_types(tests: Tests, parser: str, tmp_path: Path) -> None:
    found = [one for one in tests(**TWO) if one["apiVersion"].startswith(OPERATORS)]
    file = tmp_path / "objects.yaml"
    file.write_text("\n---\n".join(map(yaml.safe_dump, found)))

    done = subprocess.run([parser, "objects", str(file)], capture_output=True, text=True, check=False)

    assert len(found) == 2
    assert done.returncode == 0, done.stderr


def test_each_class_is_written_cut_restored_and_compared_in_this_order(tests: Tests) -> None:
    parts = ("write", "snapshot", "compare")

    assert names(tests(**TWO)) == [f"csi-multi-test-{n}-{part}" for n in (0, 1) for part in parts]


def test_without_a_snapshot_class_the_first_volume_is_read_again(tests: Tests) -> None:
    parts = ["csi-multi-test-0-write", "csi-multi-test-0-compare"]

    assert names(tests(storageClasses=[{"name": "fast"}])) == parts
    off = {"snapshotter": {"enabled": False}}
    assert names(tests(**TWO | {"storageClasses": [{"name": "fast"}]}, sidecars=off)) == parts


def test_the_values_say_which_classes_with_which_size(tests: Tests) -> None:
    objects = tests(**TWO, test={"claims": [{"storageClass": "large", "size": "4Gi"}]})

    assert len(objects) == 2
    (volume,) = objects[0]["spec"]["volumes"]
    spec = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert spec["storageClassName"] == "large"
    assert spec["resources"] == {"requests": {"storage": "4Gi"}}


def test_the_second_claim_is_restored_from_the_snapshot_of_the_first(tests: Tests) -> None:
    _, snapshot, compare = tests(**TWO)[:3]

    assert snapshot["spec"]["source"] == {"persistentVolumeClaimName": "csi-multi-test-0-write-data"}
    volumes = {one["name"]: one for one in compare["spec"]["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "csi-multi-test-0-write-data"}
    source = volumes["restored"]["ephemeral"]["volumeClaimTemplate"]["spec"]["dataSource"]
    assert source["name"] == snapshot["metadata"]["name"]


def test_nothing_is_tested_where_the_test_is_switched_off(helm: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"config": EBS, **TWO, "test": {"enabled": False}}))
    with pytest.raises(AssertionError, match="could not find template"):
        render.__wrapped__(helm, file, tests=True)


def test_pods_of_the_test_have_no_credentials_no_capability_and_no_root(tests: Tests) -> None:
    for spec in pods(tests(**TWO)):
        (container,) = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_image_user_and_place_of_the_pods_are_values(tests: Tests) -> None:
    given = {
        "image": "registry.example.com/busybox:1.37",
        "serviceAccountName": "tester",
        "podSecurityContext": {"runAsUser": 1000},
        "nodeSelector": {"storage": "local"},
        "tolerations": [{"operator": "Exists"}],
        "resources": {"requests": {"cpu": "1"}},
    }
    for spec in pods(tests(**TWO, test=given, imagePullSecrets=[{"name": "registry"}])):
        (container,) = spec["containers"]
        assert container["image"] == given["image"]
        assert container["resources"]["requests"]["cpu"] == "1"
        assert spec["serviceAccountName"] == "tester"
        assert spec["securityContext"]["runAsUser"] == 1000
        assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "storage": "local"}
        assert spec["tolerations"] == given["tolerations"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]


def run(script: str, place: Path) -> int:
    """Run a script of the test here, with `place` in place of the root directory."""
    for name in ("data", "restored"):
        script = script.replace(f"/{name}", f"{place}/{name}")
    return subprocess.run(["sh", "-euc", script], env=os.environ, capture_output=True, check=False).returncode


@pytest.mark.parametrize("damage", [None, "data/bytes", "restored/bytes", "restored/sums", "both"])
def test_the_comparison_fails_where_a_byte_differs(tests: Tests, tmp_path: Path, damage: str | None) -> None:
    write, compare = (spec["containers"][0]["args"][0] for spec in pods(tests(**TWO))[:2])
    (tmp_path / "data").mkdir()
    assert run(write, tmp_path) == 0
    subprocess.run(["cp", "-r", tmp_path / "data", tmp_path / "restored"], check=True)
    if damage == "both":  # the same wrong bytes in both
        for name in ("data", "restored"):
            (tmp_path / name / "bytes").write_bytes(b"")
    elif damage:
        (tmp_path / damage).write_bytes(b"other")

    assert (run(compare, tmp_path) == 0) is (damage is None)
