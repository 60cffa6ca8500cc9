"""`csi-multi explain` says what a StorageClass would do, and where it does not fit. Here without any storage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csi_multi.commands.cli import main
from csi_multi.commands.explain import quantity
from csi_multi.config.document import ConfigError

CONFIG = """\
driver: {name: multi.csi.test, node: node-1, default_backend: fast}
backends:
  fast: {kind: lvm, volume_group: vg0}
  cloud: {kind: ebs, region: eu-west-1}
"""
CLASS = """\
# a comment
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: fast
provisioner: multi.csi.test
volumeBindingMode: WaitForFirstConsumer
"""

Explain = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., int]:
    """Explain a manifest; returns the exit code."""
    config, manifest = tmp_path / "config.yaml", tmp_path / "class.yaml"
    config.write_text(CONFIG)

    def run(text: str = CLASS, *words: str) -> int:
        manifest.write_text(text)
        return main(["explain", "--config", str(config), "--storageclass", str(manifest), "--offline", *words])

    return run


@pytest.fixture
def told(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Explain:
    """Return what --json says of the first class."""

    def told(text: str = CLASS, *words: str) -> dict[str, Any]:
        code = run(text, *words, "--json")
        first: dict[str, Any] = json.loads(capsys.readouterr().out)[0]
        assert code == (1 if first["refused"] else 0)
        return first

    return told


def test_the_default_instance_is_told_with_the_line_that_names_it(told: Explain) -> None:
    found = told()

    assert (found["instance"], found["kind"]) == ("fast", "lvm")
    assert "driver.default_backend" in found["instance_reason"]
    assert "config.yaml:1" in found["instance_reason"]


def test_the_instance_that_the_class_names_is_told_with_its_line(told: Explain) -> None:
    assert "class.yaml:10" in told(CLASS + "parameters:\n  type: linear\n  backend: fast\n")["instance_reason"]


def test_an_unknown_parameter_is_refused_with_the_nearest_and_its_line(told: Explain) -> None:
    found = told(CLASS + "parameters:\n  backend: fast\n  tpye: linear\n")

    assert "class.yaml:10: parameters: unknown key 'tpye'; did you mean 'type'?" in found["refused"]


def test_a_bad_value_is_refused_with_its_line(told: Explain) -> None:
    found = told(CLASS + 'parameters:\n  type: raid1\n  mirrors: "99"\n')

    assert "class.yaml:10: parameters: 'mirrors'" in found["refused"]


def test_every_parameter_is_told_as_it_counts(told: Explain) -> None:
    rows = {row["key"]: row for row in told(CLASS + "parameters: {type: linear}\n")["parameters"]}

    assert (rows["type"]["value"], rows["type"]["given"]) == ("linear", True)
    assert (rows["wipe"]["value"], rows["wipe"]["given"]) == ("auto", False)
    assert "disks" in rows["type"]["meaning"]


def test_options_of_mkfs_and_mount_flags_are_told_as_the_node_uses_them(told: Explain) -> None:
    text = CLASS + 'mountOptions: [noatime]\nparameters:\n  csi.storage.k8s.io/fstype: xfs\n  blockSize: "1024"\n'
    found = told(text)["filesystem"]

    assert found["type"] == "xfs"
    assert "size=1024" in found["mkfs"]
    assert {"noatime", "nouuid"} <= {*found["mount_flags"]}
    assert "relatime" not in found["mount_flags"]
    assert "first use" in found["formats"]


def test_the_filesystem_is_read_under_its_old_key_in_any_capitals_and_never_twice(told: Explain) -> None:
    once = told(CLASS + "parameters:\n  FsType: xfs\n")
    twice = told(CLASS + "parameters:\n  csi.storage.k8s.io/fstype: xfs\n  fstype: xfs\n")

    assert once["filesystem"]["type"] == "xfs"
    assert "from the class" in json.dumps(once["filesystem"])
    assert any("class.yaml:9: 'FsType' is a deprecated name" in one for one in once["warnings"])
    (refused,) = (one for one in twice["warnings"] if "external-provisioner refuses the class" in one)
    assert "class.yaml:10: 'csi.storage.k8s.io/fstype' and 'fstype' both name the filesystem" in refused


def test_a_block_volume_is_never_formatted(told: Explain) -> None:
    found = told(CLASS, "--block")["filesystem"]

    assert (found["type"], found["formats"], found["mkfs"]) == ("", "never", [])


def test_a_mount_flag_that_no_node_takes_is_refused(told: Explain) -> None:
    assert "class.yaml:8: NodeStageVolume: mount flag 1" in told(CLASS + "mountOptions: [bind]\n")["refused"]


def test_an_option_of_another_filesystem_is_refused(told: Explain) -> None:
    found = told(CLASS + 'parameters:\n  csi.storage.k8s.io/fstype: xfs\n  bytesPerInode: "4096"\n')

    assert "class.yaml:10: 'bytesPerInode' is not an option of xfs" in found["refused"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("WaitForFirstConsumer", "Immediate"), "class.yaml:7: with Immediate binding"),
        (("provisioner: multi.csi.test", "provisioner: other"), "class.yaml:6: provisioner 'other' is not this driver"),
        (
            ("metadata:", "parameters: {csi.storage.k8s.io/fstpe: xfs}\nmetadata:"),
            "did you mean 'csi.storage.k8s.io/fs",
        ),
        (
            ("metadata:", "parameters: {csi.storage.k8s.io/node-stage-secret-name: s}\nmetadata:"),
            "has no effect without csi.storage.k8s.io/node-stage-secret-namespace",
        ),
        (
            ("metadata:", "allowedTopologies: [{matchLabelExpressions: [{key: zone, values: [a]}]}]\nmetadata:"),
            "class.yaml:4: key 'zone' does not belong to this driver",
        ),
    ],
)
def test_what_does_not_fit_is_warned_of_with_its_line(told: Explain, change: tuple[str, str], words: str) -> None:
    assert [words for warning in told(CLASS.replace(*change))["warnings"] if words in warning] == [words]


def test_a_class_that_fits_has_no_warning(told: Explain) -> None:
    assert told(CLASS + "allowVolumeExpansion: true\n")["warnings"] == []


def test_a_place_that_the_class_does_not_allow_is_warned_of(told: Explain) -> None:
    places = "allowedTopologies: [{matchLabelExpressions: [{key: multi.csi.test/node, values: [node-1, node-3]}]}]\n"

    assert told(CLASS + places, "--node", "node-1")["warnings"] == []
    assert "not allowed" in told(CLASS + places, "--topology", "node=node-2")["warnings"][0]


def test_the_node_that_is_asked_for_is_where_the_volume_is(told: Explain) -> None:
    assert told(CLASS, "--node", "node-7")["places"] == ["node=node-7"]
    assert told(CLASS, "--topology", "multi.csi.test/node=node-8")["places"] == ["node=node-8"]


def test_what_is_kept_from_kubernetes_is_told(told: Explain) -> None:
    secret = "csi.storage.k8s.io/provisioner-secret-name"
    found = told(CLASS + f"reclaimPolicy: Retain\nparameters: {{{secret}: s, {secret}space: n}}\n")

    assert any("Retain" in policy for policy in found["policies"])
    assert any("provisioner-secret-name: s" in policy for policy in found["policies"])


def test_what_was_assumed_is_told_and_why(told: Explain) -> None:
    found = told(CLASS, "--size", "10Gi")

    assert found["storage_not_read"] == "--offline was given"
    assert "extents" in found["assumed"][0]
    assert found["bytes"] == 10 * 2**30


def test_a_source_of_another_instance_is_refused(told: Explain) -> None:
    assert "belongs to backend 'cloud'" in told(CLASS, "--from-volume", "cloud/vol-0123456789abcdef0")["refused"]


def test_all_classes_of_a_file_are_explained_and_other_kinds_named(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(f"{CLASS}---\n---\n{CLASS.replace('name: fast', 'name: second')}---\nkind: VolumeSnapshotClass\n")
    out = capsys.readouterr().out

    assert code == 0
    assert "StorageClass fast (" in out
    assert "StorageClass second (" in out
    assert "because only StorageClasses are: VolumeSnapshotClass" in out


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("kind: Pod\n", (), "class.yaml:1: the file contains no StorageClass"),
        (CLASS, ("--class", "fats"), "did you mean 'fast'?"),
        (CLASS.replace("volumeBinding", "volumeBindin"), (), "class.yaml:7: StorageClass: unknown key"),
        (CLASS.replace("WaitForFirst", "WaitForfirst"), (), "class.yaml:7: volumeBindingMode: unknown value"),
        (CLASS + "parameters: {mirrors: 1}\n", (), "class.yaml:8: parameters: 'mirrors' is not a string"),
        (CLASS + "parameters: {integrity: true}\n", (), 'write integrity: "true"'),
        (CLASS + "allowedTopologies: [a]\n", (), "class.yaml:8: 'allowedTopologies' must be a list of"),
        (CLASS + "a: [\n", (), "not valid YAML"),
        (CLASS, ("--size", "10GB"), "--size: '10GB' is not a quantity"),
        (CLASS, ("--topology", "zone"), "--topology: 'zone' is not KEY=VALUE"),
        (CLASS, ("--claim", "x"), "--claim: 'x' is not NAMESPACE/NAME"),
        (CLASS, ("--from-snapshot", "x"), "--from-snapshot: "),
    ],
)
def test_what_cannot_be_read_is_bad_usage_and_says_where(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], text: str, words: tuple[str, ...], said: str
) -> None:
    assert run(text, *words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1k", 1000), ("1Ki", 1024), ("10Gi", 10 * 2**30), ("1.5G", 1500000000), ("0.1Ki", 103)],
)
def test_quantities_are_those_of_kubernetes(text: str, size: int) -> None:
    assert quantity.parse(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "1gi", "-1", "1 Gi", "1e3Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="quantity"):
        quantity.parse(text)
