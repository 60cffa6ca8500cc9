"""docs/status-codes.md against the callers: functions from their released sources say what they do with each code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import CHART, ROOT

PAGE = ROOT / "docs/status-codes.md"
RESIZER = "github.com/kubernetes-csi/external-resizer/v2"
LEAVES_CLASS = "if errStatus.Code() == codes.InvalidArgument {\n\t\t\t\t\ttargetStatus = "


class Source(NamedTuple):
    """A function of a caller; `name` is what main.go calls it."""

    name: str
    module: str
    version: str
    file: str
    function: str


SOURCES = (
    Source(
        "provisioner",
        "github.com/kubernetes-csi/external-provisioner/v6",
        "v6.4.0",
        "pkg/controller/controller.go",
        "checkError",
    ),
    Source(
        "snapshotter",
        "github.com/kubernetes-csi/external-snapshotter/v8",
        "v8.6.0",
        "pkg/sidecar-controller/snapshot_controller.go",
        "isCSIFinalError",
    ),
    Source("resizerFinal", RESIZER, "v2.2.0", "pkg/util/util.go", "IsFinalError"),
    Source("resizerInfeasible", RESIZER, "v2.2.0", "pkg/util/util.go", "IsInfeasibleError"),
    Source("resizerInUse", RESIZER, "v2.2.0", "pkg/controller/controller.go", "inUseError"),
    Source("kubeletFinal", "k8s.io/kubernetes", "v1.36.0", "pkg/volume/csi/csi_client.go", "isFinalError"),
    Source("kubeletInfeasible", "k8s.io/kubernetes", "v1.36.0", "pkg/volume/csi/expander.go", "isInfeasibleError"),
    Source("kubeletInUse", "k8s.io/kubernetes", "v1.36.0", "pkg/volume/csi/expander.go", "inUseError"),
)
SIDECARS = {"provisioner": "6.4", "snapshotter": "8.6", "resizer": "2.2", "attacher": "4.13"}

MAIN = """package main

import (
	"encoding/json"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What the provisioner's function refers to, of sig-storage-lib-external-provisioner.
type state string

var controller = struct{ ProvisioningInBackground, ProvisioningFinished, ProvisioningReschedule state }{
	"pending", "final", "elsewhere",
}

func final(is bool) string {
	if is {
		return "final"
	}
	return "pending"
}

func expansion(err error, isFinal, infeasible, inUse func(error) bool) string {
	if infeasible(err) {
		return "infeasible"
	}
	if inUse(err) {
		return "in use"
	}
	return final(isFinal(err))
}

func main() {
	rows := map[string][]string{}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		err := status.Error(code, "text")
		rows[code.String()] = []string{
			string(provisioner(err, true)),
			final(snapshotter(err)),
			expansion(err, resizerFinal, resizerInfeasible, resizerInUse),
			final(resizerFinal(err)),
			final(kubeletFinal(err)),
			expansion(err, kubeletFinal, kubeletInfeasible, kubeletInUse),
			string(provisioner(err, false)),
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(rows)
}
"""


def go(directory: Path, *words: str) -> str:
    found = os.environ.get("GO") or shutil.which("go")
    if not found:
        pytest.skip("no go: `make deploy` says where it is in GO")
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod -modcacherw"}
    done = subprocess.run([found, *words], cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"go {' '.join(words)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def folder(module: str, tag: str, directory: Path) -> Path:
    """Return where a module's sources are; they are downloaded, and not built."""
    return Path(json.loads(go(directory, "mod", "download", "-json", f"{module}@{tag}"))["Dir"])


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("verdicts")
    (directory / "go.mod").write_text("module verdicts\n\ngo 1.26.0\n\nrequire google.golang.org/grpc v1.79.3\n")
    return directory


@pytest.fixture(scope="module")
def verdicts(module: Path) -> dict[str, list[str]]:
    """By code, what the callers do: the columns of the page, then CreateVolume without a node to choose again."""
    functions = []
    for one in SOURCES:
        text = (folder(one.module, one.version, module) / one.file).read_text()
        (found,) = re.findall(rf"^func {one.function}(\(.*?^}})$", text, re.DOTALL | re.MULTILINE)
        functions.append(f"func {one.name}{found.replace('controller.ProvisioningState', 'state')}")
    (module / "main.go").write_text("\n\n".join([MAIN, *functions]))
    rows = json.loads(go(module, "run", "."))
    return {upper(code): row for code, row in rows.items()}


def upper(code: str) -> str:
    """Return the name that csi-spec and Python use: FailedPrecondition -> FAILED_PRECONDITION."""
    return "CANCELLED" if code == "Canceled" else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", code).upper()


def page() -> dict[str, list[str]]:
    """The first table of the page."""
    rows = re.findall(r"^\| ([A-Z_]+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    table: dict[str, list[str]] = {}
    for code, cells in rows[:16]:
        table[code] = cells.split(" | ")
    return table


@pytest.mark.deploy
def test_the_page_says_what_the_callers_own_functions_say(verdicts: dict[str, list[str]]) -> None:
    table = page()
    table["INVALID_ARGUMENT"][3] = "final"  # infeasible by the next test

    assert {code: row[:6] for code, row in verdicts.items()} == table


@pytest.mark.deploy
def test_a_creation_that_finds_no_space_is_final_where_the_scheduler_cannot_choose_again(
    verdicts: dict[str, list[str]],
) -> None:
    differ = {code: row[6] for code, row in verdicts.items() if row[6] != row[0]}

    assert differ == {"RESOURCE_EXHAUSTED": "final"}


@pytest.mark.deploy
def test_only_an_invalid_argument_lets_a_claim_leave_its_class(module: Path) -> None:
    source = folder(RESIZER, "v2.2.0", module) / "pkg/modifycontroller/modify_volume.go"

    assert source.read_text().count(LEAVES_CLASS + "v1.PersistentVolumeClaimModifyVolumeInfeasible") == 1
    assert [code for code, row in page().items() if row[3] == "infeasible"] == ["INVALID_ARGUMENT"]


@pytest.mark.parametrize("name", SIDECARS)
def test_the_page_is_about_the_sidecars_of_the_chart(name: str) -> None:
    (tag,) = re.findall(rf"sig-storage/csi-{name}:v([0-9.]+)", (CHART / "values.yaml").read_text())

    assert tag.split(".")[:2] == SIDECARS[name].split(".")
    assert re.search(rf"kubernetes-csi/external-{name} \| v{re.escape(tag)} \|", PAGE.read_text())
