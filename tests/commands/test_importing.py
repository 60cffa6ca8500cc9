"""`csi-multi import` prints a PersistentVolume for what is there already, and changes nothing unless it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from csi_multi.commands.cli import main

MIB = 2**20
Run = Callable[..., int]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Somebody's image file."""
    file = tmp_path / "vm.img"
    file.write_bytes(b"data" + bytes(MIB - 4))
    return file


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the verb on an instance of the loop backend."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "driver: {name: multi.csi.test, node: node-1}\n"
        f"backends:\n  scratch: {{kind: loop, directory: {tmp_path}/pool, reserve_percent: 0}}\n"
        "  cloud: {kind: ebs, region: eu-west-1}\n"
    )
    return lambda *words: main(["import", "--config", str(config), "--instance", "scratch", *words])


@pytest.fixture
def manifest(run: Run, image: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return what is printed for the image."""

    def manifest(*words: str) -> dict[str, Any]:
        assert run("--name", "old-data", *words, str(image)) == 0
        found: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
        return found

    return manifest


def test_the_persistent_volume_is_that_of_the_volume(manifest: Callable[..., dict[str, Any]]) -> None:
    assert manifest("--fs-type", "ext4", "--storageclass", "scratch", "--claim", "shop/data") == {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "old-data"},
        "spec": {
            "capacity": {"storage": str(MIB)},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "scratch",
            "csi": {
                "driver": "multi.csi.test",
                "volumeHandle": "scratch/node-1/old-data",
                "fsType": "ext4",
                "volumeAttributes": {"fsType": "ext4"},
            },
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "multi.csi.test/node", "operator": "In", "values": ["node-1"]},
                            ]
                        }
                    ]
                }
            },
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data"},
        },
    }


def test_without_a_class_or_claim_no_default_class_can_take_it(manifest: Callable[..., dict[str, Any]]) -> None:
    spec = manifest("--block")["spec"]

    assert (spec["storageClassName"], spec["volumeMode"]) == ("", "Block")
    assert "claimRef" not in spec
    assert {*spec["csi"]} == {"driver", "volumeHandle"}


def test_nothing_is_changed_without_apply(
    run: Run, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--name", "old-data", str(image)) == 0

    told = capsys.readouterr().err
    assert "Nothing was changed. With --apply this is done:" in told
    assert f"ln {image}" in told
    assert not (tmp_path / "pool").exists()


def test_the_manifest_is_the_same_before_and_after(manifest: Callable[..., dict[str, Any]], image: Path) -> None:
    before = manifest()

    assert manifest("--apply") == before == manifest("--apply") == manifest()
    assert image.stat().st_nlink == 2


def test_a_release_is_tried_first_and_then_done(run: Run, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--name", "old-data", "--apply", str(image)) == 0

    assert run("--release", "scratch/node-1/old-data") == 0
    assert image.stat().st_nlink == 2
    assert run("--release", "--apply", "scratch/node-1/old-data") == 0
    assert image.stat().st_nlink == 1
    assert run("--release", "--apply", "scratch/node-1/old-data") == 1
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--name", "A"), 2, "--name: 'A' is not a valid name of a PersistentVolume"),
        ((), 2, "--name: '' is not a valid name"),
        (("--name", "a", "--claim", "x"), 2, "--claim: 'x' is not NAMESPACE/NAME"),
        (("--name", "a", "--instance", "scrtach"), 2, "did you mean 'scratch'?"),
        (("--name", "a", "--fs-type", "ntfs"), 1, "filesystem 'ntfs' is not supported"),
        (("--name", "a", "--access-mode", "ReadWriteMany"), 1, "MULTI_NODE_MULTI_WRITER is not supported"),
        (("--release",), 1, "does not exist"),
    ],
)
def test_what_cannot_be_says_why(
    run: Run, image: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    assert run(*words, str(image)) == code
    assert said in capsys.readouterr().err


def test_an_id_of_another_instance_is_not_released(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--release", "cloud/vol-0123456789abcdef0") == 1
    assert "belongs to backend 'cloud'" in capsys.readouterr().err
