"""The examples in the documentation work: configuration, classes, caps, labels; and every key is documented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import csi_multi_rbd
import pytest
import yaml
from csi_multi_rbd import labels
from csi_multi_rbd.ceph_rules import FEATURES, NOT_IN_KERNELS
from csi_multi_rbd.config import Config, Parameters, SnapshotParameters
from csi_multi_rbd.images import image_layout, refuse_other_cluster

from csi_multi.config.settings import load_config
from csi_multi.contract import Blank, Stamp
from csi_multi.contract.params import camel, fields, parse
from csi_multi.node.mkfs_options import FilesystemOptions

from .ceph import user_caps

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/rbd.md").read_text()
EXAMPLE = ROOT / "config/rbd.yaml"
CLASSES = {
    (one["kind"], one["metadata"]["name"]): one.get("parameters", {})
    for one in yaml.safe_load_all((ROOT / "config/storageclass-rbd.yaml").read_text())
}
FILESYSTEM = {camel(field.name) for field in fields(FilesystemOptions)}
SOURCE = "\n".join(file.read_text() for file in Path(csi_multi_rbd.__file__).parent.glob("*.py"))
SAID = re.sub(r'"\s*\n\s*f?"', "", SOURCE)  # texts that are written on several lines
ROWS = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")]


def instances(file: Path) -> dict[str, Config]:
    loaded = load_config(file)
    return {one.name: loaded.document.section(("backends", one.name), Config, one.values) for one in loaded.instances}


def own(kind: str, name: str) -> dict[str, str]:
    """Return what the core hands to the backend of a class's parameters."""
    return {
        key: value
        for key, value in CLASSES[kind, name].items()
        if key != "backend" and key not in FILESYSTEM and not key.startswith("csi.storage.k8s.io/")
    }


def quoted(column: str) -> list[str]:
    """Return the texts in backticks that are no words of a table's own."""
    return re.findall(r"`([^`]+)`", column)


def test_the_example_configuration_is_valid() -> None:
    found = instances(EXAMPLE)

    assert found.keys() == {"ceph-a", "ceph-b"}
    assert found["ceph-a"].fsid != found["ceph-b"].fsid


def test_the_example_configuration_shows_every_key_and_its_default() -> None:
    text = EXAMPLE.read_text()
    shown = dict(re.findall(r"^    # (\w+): (.*)$", text, re.MULTILINE))
    least: dict[str, Any] = {
        "monitors": ("a",),
        "fsid": "5f1c9a52-6d0e-4a4b-9f61-2f1d7c0e8b11",
        "pool": "p",
        "user": "u",
    }
    default = Config(**least)

    assert {field.name for field in fields(Config)} == set(re.findall(r"^    (?:# )?(\w+): ", text, re.MULTILINE)) - {
        "kind"
    }
    for key, written in shown.items():
        told = yaml.safe_load(written)
        assert getattr(default, key) == (tuple(told) if isinstance(told, list) else told), key


def test_the_several_clusters_of_the_page_are_valid(tmp_path: Path) -> None:
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) if block.startswith("backends:")]
    file = tmp_path / "driver.yaml"
    for block in blocks:
        file.write_text("driver: {name: multi.csi.example.com}\n" + block)
        assert instances(file).keys() == {"ceph-a", "ceph-ssd", "ceph-b"}


@pytest.mark.parametrize("name", ["ceph", "ceph-b-striped"])
def test_the_example_storage_classes_make_images(name: str) -> None:
    instance = instances(EXAMPLE)[CLASSES["StorageClass", name]["backend"]]
    parameters = parse(Parameters, own("StorageClass", name), "parameters")

    assert image_layout(instance, parameters).features == (
        "layering",
        "exclusive-lock",
        "object-map",
        "fast-diff",
        "deep-flatten",
    )


def test_the_example_snapshot_class_suits_both_instances() -> None:
    parameters = parse(SnapshotParameters, own("VolumeSnapshotClass", "ceph"), "parameters")

    for instance in instances(EXAMPLE).values():
        refuse_other_cluster(instance, parameters)


def test_the_caps_that_the_page_tells_to_give_are_those_of_the_tests() -> None:
    command = re.search(r"ceph auth get-or-create client\.csi ((?:\w+ '[^']+' ?)+)", TEXT)

    assert command
    assert dict(re.findall(r"(\w+) '([^']+)'", command[1])) == user_caps("k8s")


def test_every_field_of_the_configuration_is_explained_on_the_page() -> None:
    plain = {"min_size", "max_size", "default_size", "unmap_options"}  # the generated table says all there is

    for name in {field.name for field in fields(Config)} - plain:
        assert f"`{name}`" in TEXT or f"{name}: " in TEXT, name


def test_every_image_feature_is_in_the_table_of_kernels() -> None:
    table = {quoted(row[0])[0]: row[1] for row in ROWS if row[0].strip("`") in FEATURES}

    assert table.keys() == set(FEATURES)
    assert {name for name, kernel in table.items() if kernel == "none"} == NOT_IN_KERNELS


def test_every_message_that_is_explained_is_one_that_the_driver_gives() -> None:
    page = TEXT.partition("## When something is wrong")[2].partition("### Recovery")[0]
    listed = page.partition("a part of the text:")[2].partition("Reported conditions")[0]
    items = [" ".join(item.split()) for item in re.split(r"^- ", listed, flags=re.MULTILINE)[1:]]
    messages = [text for item in items for text in quoted(re.split(r"(?<=`): ", item)[0])]

    assert len(messages) > 20
    assert [text for text in messages if text not in SAID] == []


def test_a_label_that_is_written_by_hand_makes_an_image_a_volume() -> None:
    block = TEXT.partition("## Existing images")[2].partition("```sh")[2].partition("```")[0]
    image, label = re.findall(r"image-meta set k8s/prod/(\S+) csi-multi '(.*?)'", block, re.DOTALL)[0]
    how_far = re.findall(r"csi-multi-format (\w+)", block)[0]
    found = labels.decode(image, {labels.KEY: label}, 2**30)

    assert found
    assert found.stamp == Stamp(
        driver="multi.csi.example.com", cluster="prod", name="data-db-0", digest="adopted", context={"fsType": "ext4"}
    )
    assert image == labels.name_prefix(labels.VOLUME, "multi.csi.example.com", "prod") + labels.leaf_for("data-db-0")
    assert labels.blank_state(found, {labels.FORMAT: how_far}) is Blank.NEVER


def test_the_label_that_is_shown_begins_like_one() -> None:
    label = labels.Label(
        image="csi-vol-619815a8-pvc-1f0e",
        stamp=Stamp(driver="multi.csi.example.com", cluster="prod", name="pvc-1f0e", digest="d"),
    )

    assert labels.encode(label).split('"digest"')[0].rstrip(",") in TEXT
