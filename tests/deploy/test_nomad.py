"""Nomad's job and volume files are what Nomad takes, and fit the driver and each other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from csi_multi.config.settings import load_config
from csi_multi.contract.params import parse
from csi_multi.host.command import LocalHost
from csi_multi.loading.loader import load_instances

from .conftest import ROOT

NOMAD = ROOT / "config/nomad"
JOBS = sorted(NOMAD.glob("*.nomad.hcl"))
VOLUMES = sorted(NOMAD.glob("volume-*.hcl"))


def refused(parser: str, kind: str, file: Path) -> str:
    done = subprocess.run([parser, kind, file.name], cwd=file.parent, capture_output=True, text=True, check=False)
    return done.stderr


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.name)
def test_nomads_parser_takes_every_job(file: Path, parser: str) -> None:
    assert refused(parser, "job", file) == ""


@pytest.mark.parametrize("file", VOLUMES, ids=lambda file: file.name)
def test_nomads_types_take_every_volume(file: Path, parser: str) -> None:
    assert refused(parser, "volume", file) == ""


@pytest.mark.parametrize(
    ("kind", "name", "right", "wrong"),
    [
        ("job", "app.nomad.hcl", "attachment_mode", "attachement_mode"),
        ("job", "app.nomad.hcl", "volume_mount", "volume_mounts"),
        ("volume", "volume-loop.hcl", "plugin_id", "plugin"),
        ("volume", "volume-loop.hcl", "attachment_mode", "attachement_mode"),
    ],
)
def test_the_parser_refuses_a_wrong_word(
    parser: str, tmp_path: Path, kind: str, name: str, right: str, wrong: str
) -> None:
    file = tmp_path / name
    file.write_text((NOMAD / name).read_text().replace(right, wrong))

    assert wrong in refused(parser, kind, file)


def test_the_configuration_passes_the_drivers_own_check() -> None:
    settings = load_config(NOMAD / "csi-multi.yaml", "node-1")

    assert not load_instances(settings, LocalHost()).broken


def test_the_drivers_container_is_told_nothing_that_docker_does_not_know() -> None:
    """Nomad's parser hands this block on as it is, to the plugin on the client."""
    known = {
        "image",
        "args",
        "command",
        "privileged",
        "network_mode",
        "pid_mode",
        "volumes",
        "cap_drop",
        "security_opt",
    }
    for file in JOBS:
        (block,) = re.findall(r"\n      config \{\n(.*?)\n      \}", file.read_text(), re.DOTALL)
        assert set(re.findall(r"^ +(\w+) +[={]", block, re.MULTILINE)) <= known, file.name
    assert re.search(r"privileged += true", (NOMAD / "node.nomad.hcl").read_text())


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.name)
def test_nothing_is_mounted_where_nomad_itself_mounts(file: Path) -> None:
    """Docker refuses a container with two mounts in one place; Nomad gives plugins its own and /dev."""
    targets = re.findall(r'"/[^":]*:(/[^":]*)|target += "([^"]*)"', file.read_text())

    assert {"/dev", "/csi", "/local", "/local/csi", "/secrets", "/alloc"} & {
        one or other for one, other in targets
    } == set()


def test_jobs_bring_every_file_that_the_configuration_names() -> None:
    text = (NOMAD / "csi-multi.yaml").read_text()
    brought = set(re.findall(r'destination = "(secrets/[^"]*)"', (NOMAD / "controller.nomad.hcl").read_text()))

    assert set(re.findall(r"/(secrets/[\w.]+)", text)) == brought


def test_nodes_get_no_secret_but_their_certificate() -> None:
    brought = set(re.findall(r'destination = "(secrets/[^"]*)"', (NOMAD / "node.nomad.hcl").read_text()))

    assert brought == {"secrets/ca.crt", "secrets/tls.crt", "secrets/tls.key"}


@pytest.mark.parametrize("file", VOLUMES, ids=lambda file: file.name)
def test_a_volume_names_a_backend_of_the_configuration_and_parameters_that_it_takes(file: Path) -> None:
    text = file.read_text()
    block = re.search(r"parameters \{(.*?)\n\}", text, re.DOTALL)
    assert block is not None
    parameters = dict(re.findall(r'(\w+) += "([^"]*)"', block[1]))
    settings = load_config(NOMAD / "csi-multi.yaml", "node-1")

    instance = load_instances(settings, LocalHost()).get(parameters.pop("backend"))

    parse(instance.backend.Parameters, parameters, file.name)
    assert 'plugin_id = "csi-multi"' in text
