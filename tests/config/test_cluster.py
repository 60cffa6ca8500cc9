"""The `cluster:` section: what it accepts, and the error for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from csi_multi.commands.cli import main
from csi_multi.config.cluster import Cluster
from csi_multi.config.document import ConfigError
from csi_multi.config.settings import load_config
from tests.cluster_section import HEAD, TLS


def test_a_file_without_the_section_has_no_cluster(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(HEAD.replace("cluster:\n", ""))

    assert load_config(file).cluster == Cluster()


def test_nodes_are_named_with_their_addresses(load: Any) -> None:
    found = load(
        TLS + "  nodes:\n    node-1: 10.0.0.1:9810\n    node-2: {address: 'n2:1', topology: {zone: a}}\n"
    ).cluster

    assert {name: one.address for name, one in found.nodes.items()} == {"node-1": "10.0.0.1:9810", "node-2": "n2:1"}
    assert found.nodes["node-2"].topology == {"zone": "a"}
    assert found.forwards_rpcs


def test_an_address_is_made_of_a_nodes_name(load: Any) -> None:
    found = load(TLS + "  nodes: [node-1, n.2]\n  address: '{node}.csi.svc:9810'\n").cluster

    assert [one.address for one in found.nodes.values()] == ["node-1.csi.svc:9810", "n.2.csi.svc:9810"]


def test_the_repositorys_example_is_valid() -> None:
    found = load_config(Path(__file__).parents[2] / "config" / "cluster.yaml").cluster

    assert found.forwards_rpcs
    assert found.listen


@pytest.mark.parametrize(
    ("lines", "line", "text"),
    [
        ("  listn: 0.0.0.0:9810\n", 5, "did you mean 'listen'?"),
        ("  tsl: {}\n", 5, "did you mean 'tls'?"),
        ("  listen: 0.0.0.0:9810\n", 4, "cluster.tls: is required"),
        (TLS + "  listen: 9810\n", 6, "'listen'"),
        (TLS + "  listen: 0.0.0.0\n", 6, "ADDRESS:PORT"),
        (TLS + "  listen: 0.0.0.0:99999\n", 6, "ADDRESS:PORT"),
        (TLS + "  nodes: {node-1: 10.0.0.1}\n", 6, "node-1: '10.0.0.1' is not HOST:PORT"),
        (TLS + "  nodes:\n    node-1: 10.0.0.1:1\n    a/b: 10.0.0.2:1\n", 6, "'a/b' is not a valid node name"),
        (TLS + "  nodes:\n    node-1: 10.0.0.1:1\n    node-2: {addres: x}\n", 8, "did you mean 'address'?"),
        (TLS + "  nodes:\n    node-1: 10.0.0.1:1\n    node-2: 7\n", 8, "node-2: must be HOST:PORT, or a mapping"),
        (TLS + "  nodes: [node-1]\n", 4, "cluster.address: is required when 'nodes' is a list"),
        (TLS + "  nodes: [node-1]\n  address: csi:1\n", 7, "must contain {node}"),
        (TLS + "  nodes: [node-1, node-1]\n  address: '{node}:1'\n", 6, "contains a node twice"),
        (TLS + "  nodes: {node-1: 10.0.0.1:1}\n  kubernetes: {}\n", 6, "set either 'nodes' or 'kubernetes', not both"),
        (TLS + "  kubernetes: {prot: 1}\n", 6, "did you mean 'port'?"),
        (TLS + "  kubernetes: {server: 'http://x'}\n", 6, "'server'"),
        (TLS + "  kubernetes: 7\n", 6, "must be a mapping"),
        (TLS + "  node_identity: controller.csi-multi\n", 6, "a node could act as the controller"),
        (TLS + "  node_identity: '{node}.csi-multi'\n", 6, "a node could act as the controller"),
        (TLS + "  controller_identity: 'a b'\n", 6, "'a b' is not a DNS name such as controller.csi-multi"),
        (TLS + "  lost: [a/b]\n", 6, "'a/b' is not a valid node name"),
        ("  tls: {ca: /tls/ca.pem}\n", 5, "'certificate' is required"),
        ("  attach_required: perhaps\n", 5, "'attach_required'"),
    ],
)
def test_a_mistake_is_named_with_its_line(load: Any, lines: str, line: int, text: str) -> None:
    with pytest.raises(ConfigError) as found:
        load(lines)

    assert f"c.yaml:{line}: " in str(found.value)
    assert text in str(found.value)


def test_check_says_who_belongs_to_the_cluster(load: Any, tmp_path: Path, capsys: Any) -> None:
    load(TLS + "  listen: 0.0.0.0:9810\n  nodes: {node-1: 10.0.0.1:1}\n  lost: [node-9]\n  attach_required: true\n")

    assert main(["check", str(tmp_path / "c.yaml")]) == 0
    said = capsys.readouterr().out
    assert "cluster: nodes: node-1; nodes serve controller.csi-multi on 0.0.0.0:9810; LOST: node-9" in said
    assert "PUBLISH_UNPUBLISH_VOLUME" in said
