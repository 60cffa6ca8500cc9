"""`csi-multi certificates`: a CA and what it signs, in files that only their owner can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from csi_multi.cluster.credentials import Credentials
from csi_multi.commands.cli import main
from csi_multi.config.cluster import TlsSection


def make(directory: Path, *words: str) -> int:
    return main(["certificates", "--directory", str(directory), *words])


def tls(directory: Path) -> TlsSection:
    return TlsSection(**{key: str(directory / f"{key}.pem") for key in ("ca", "certificate", "key")})


def test_one_command_makes_all_that_a_cluster_needs(tmp_path: Path, capsys: Any) -> None:
    assert make(tmp_path / "tls", "--node", "node-1=10.0.0.1:9810", "--node", "node-2") == 0

    for place in ("controller", "nodes/node-1", "nodes/node-2"):
        assert Credentials(tls(tmp_path / "tls" / place)).current()
    assert "nodes: {node-1: 10.0.0.1:9810, node-2: HOST:9810}" in capsys.readouterr().out


def test_keys_can_be_read_by_their_owner_only(tmp_path: Path) -> None:
    make(tmp_path / "tls", "--node", "node-1")

    keys = [*tmp_path.rglob("*key*")]
    assert len(keys) == 3
    assert {file.stat().st_mode & 0o777 for file in keys} == {0o600}
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700


def test_a_node_that_comes_later_is_signed_by_the_same_authority(tmp_path: Path) -> None:
    make(tmp_path, "--node", "node-1")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.pem")}

    make(tmp_path, "--node", "node-2")

    assert {file: file.read_bytes() for file in before} == before
    assert (tmp_path / "nodes/node-2/ca.pem").read_bytes() == before[tmp_path / "ca.pem"]


@pytest.mark.parametrize("words", [("--node", "a/b"), ("--node", ""), ("--controller-identity", "a b")])
def test_what_does_not_fit_is_refused_and_nothing_made(tmp_path: Path, capsys: Any, words: tuple[str, ...]) -> None:
    assert make(tmp_path / "tls", *words) == 2

    assert "is not a" in capsys.readouterr().err
    assert not (tmp_path / "tls").exists()


def test_half_an_authority_is_not_replaced(tmp_path: Path, capsys: Any) -> None:
    make(tmp_path)
    (tmp_path / "ca.key").unlink()

    assert make(tmp_path) == 2
    assert "has only one of ca.pem and ca.key" in capsys.readouterr().err
