"""`csi-multi parameters KIND` prints the reference of any installed backend, made from its schemas."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from csi_multi.commands.cli import main

SOURCE = """\
from typing import Annotated
from csi_multi.contract import Doc, Schema
from csi_multi_testing.memory import MemoryBackend

class Settings(Schema, frozen=True):
    pool_name: Annotated[str, Doc("pool <a> of the volumes")] = "fast"

class ClassParameters(Schema, frozen=True):
    replica_count: Annotated[int, Doc("copies of every block", ge=1, le=3)] = 2

class Own(MemoryBackend):
    contract = (1, 0)
    Config = Settings
    Parameters = ClassParameters
    GroupSnapshotParameters = ClassParameters
"""

Install = Callable[..., str]


def test_the_reference_has_every_schema_with_the_keys_as_they_are_written(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("own", SOURCE)

    assert main(["parameters", "own"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## Backend `own`\n\nConfiguration file, in `backends.NAME:` together with `kind: own`:\n")
    assert "| `pool_name` | string | fast | pool &lt;a> of the volumes |" in text
    assert text.count("| `replicaCount` | integer ≥ 1 ≤ 3 | 2 | copies of every block |") == 2
    assert "\nStorageClass:\n" in text
    assert "\nVolumeGroupSnapshotClass:\n" in text
    assert "\nVolumeSnapshotClass:\n" not in text


def test_a_kind_that_is_not_installed_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parameters", "lop"]) == 2
    assert "parameters: unknown kind 'lop'; did you mean 'loop'?" in capsys.readouterr().err


def test_a_broken_backend_is_named_with_the_reason(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("broken", "import absent_module_of_nobody")

    assert main(["parameters", "broken"]) == 2
    error = capsys.readouterr().err
    assert "backend 'broken' cannot be used" in error
    assert "absent_module_of_nobody" in error


def test_a_kind_that_is_provided_twice_names_both_providers_and_imports_neither(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = [install("own", SOURCE) for _ in range(2)]

    assert main(["parameters", "own"]) == 2
    error = capsys.readouterr().err
    assert all(f"{package}:Own of {package}" in error for package in packages)
    assert not sys.modules.keys() & set(packages)
