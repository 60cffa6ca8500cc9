"""`kubectl csi-multi` with a kubectl that has pods and classes in files, and runs csi-multi here instead of in a pod.

tests/orchestrators/kubernetes/test_plugin.py runs the same script with a real one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import ROOT

PLUGIN = ROOT / "config/kubectl/kubectl-csi_multi"
KUBECTL = r"""
import json, os, subprocess, sys
from pathlib import Path

place, words = Path(os.environ["CLUSTER"]), sys.argv[1:]
flags = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
if "--context" in flags and words[0].startswith("--context"):
    words = words[1:]
if words[:2] == ["get", "pods"]:
    if "--namespace" not in flags and "--all-namespaces" not in words or (place / "forbidden").exists():
        sys.exit("Error from server (Forbidden): pods is forbidden")
    wanted = dict(pair.split("=") for pair in flags["--selector"].split(","))
    for one in json.loads((place / "pods.json").read_text()):
        labels = {f"app.kubernetes.io/{key}": one[key] for key in ("name", "component", "instance")}
        if (
            wanted.items() <= labels.items()
            and one["namespace"] == flags.get("--namespace", one["namespace"])
            and one["node"] == flags.get("--field-selector", "=" + one["node"]).split("=")[1]
        ):
            print(one["namespace"], one["pod"], one["instance"], one["phase"], one["ready"])
elif words[:2] == ["get", "storageclass"]:
    file = place / f"{words[2]}.yaml"
    print(file.read_text()) if file.exists() else sys.exit("Error from server (NotFound)")
else:
    assert words[0] == "exec" and "--container=driver" in words
    (place / "pod").write_text(f"{flags['--namespace']}/{words[3]}")
    command = words[words.index("--") + 1 :]
    assert command[0] == "/opt/csi-multi/bin/csi-multi"
    inside = [word.replace("/etc/csi-multi/config", str(place)) for word in command[1:]]
    done = subprocess.run([os.environ["CSI_MULTI"], *inside], input=sys.stdin.buffer.read())  # a pipe, as in a pod
    sys.exit(done.returncode)
"""
CONFIG = """\
driver: {name: multi.csi.example.com, default_backend: scratch}
backends: {scratch: {kind: loop, directory: /var/lib/csi-multi/scratch}}
"""
CLASS = """\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: scratch}
provisioner: multi.csi.example.com
parameters: {backend: scratch}
volumeBindingMode: WaitForFirstConsumer
"""
Plugin = Callable[..., subprocess.CompletedProcess[str]]


def pod(pod: str, component: str = "controller", **given: str) -> dict[str, str]:
    usual = {"namespace": "storage", "instance": "csi-multi", "phase": "Running", "ready": "true", "node": "node-1"}
    return usual | {"pod": pod, "name": "csi-multi", "component": component} | given


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """plugin(PODS, WORD, ...) runs `kubectl-csi_multi` beside these pods."""
    kubectl = tmp_path / "bin/kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f"#!{sys.executable}\n{KUBECTL}")
    kubectl.chmod(0o755)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "scratch.yaml").write_text(CLASS)
    csi_multi = str(Path(sys.executable).with_name("csi-multi"))
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CLUSTER": str(tmp_path), "CSI_MULTI": csi_multi}

    def run(pods: list[dict[str, str]], *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "pods.json").write_text(json.dumps(pods))
        return subprocess.run([PLUGIN, *words], env=environment, capture_output=True, text=True, check=False)

    return run


def test_a_class_of_the_cluster_is_explained_by_the_controllers_driver(plugin: Plugin, tmp_path: Path) -> None:
    done = plugin([pod("starting", phase="Pending", ready=""), pod("one")], "explain", "--class", "scratch")

    assert done.returncode == 0, done.stderr
    assert "StorageClass scratch" in done.stdout
    assert (tmp_path / "pod").read_text() == "storage/one"


def test_a_class_of_a_local_file_is_explained_before_it_is_in_the_cluster(plugin: Plugin, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(CLASS.replace("name: scratch}", "name: mine}"))

    done = plugin([pod("one")], "explain", f"--storageclass={file}", "--size", "1Gi")

    assert done.returncode == 0, done.stderr
    assert "StorageClass mine" in done.stdout


def test_a_refusal_has_the_exit_code_of_the_command_in_the_pod(plugin: Plugin, tmp_path: Path) -> None:
    (tmp_path / "scratch.yaml").write_text(CLASS.replace("parameters: {", "parameters: {tpye: thin, "))

    assert plugin([pod("one")], "explain", "--class=scratch").returncode == 1


def test_check_shows_the_configuration_of_the_pod_and_validates_a_local_file(plugin: Plugin, tmp_path: Path) -> None:
    file = tmp_path / "next.yaml"
    file.write_text(CONFIG.replace("directory", "directroy"))

    assert "multi.csi.example.com" in plugin([pod("one")], "check").stdout
    wrong = plugin([pod("one")], "check", str(file))
    assert (wrong.returncode, "directroy" in wrong.stderr + wrong.stdout) == (2, True)


def test_import_runs_in_the_pod_of_the_node_that_has_the_volume(plugin: Plugin, tmp_path: Path) -> None:
    pods = [pod("one"), pod("first", "node"), pod("second", "node", node="node-2")]

    done = plugin(pods, "--on=node-2", "import", "--instance=scratch", "--name=old", str(tmp_path / "missing.img"))

    assert (tmp_path / "pod").read_text() == "storage/second"
    assert "missing.img" in done.stderr
    assert done.returncode == 1


def test_the_arguments_of_a_verb_are_those_of_csi_multi(plugin: Plugin) -> None:
    done = plugin([pod("one")], "explain", "--help")

    assert done.returncode == 0
    assert "usage: csi-multi explain" in done.stdout


@pytest.mark.parametrize(
    ("pods", "words", "says"),
    [
        ([], ["backends"], "no controller pod of csi-multi in any namespace"),
        ([pod("one")], ["-n", "other", "backends"], "no controller pod of csi-multi in namespace 'other'"),
        ([pod("one", name="other")], ["backends"], "is the chart installed in this cluster"),
        ([pod("first", "node")], ["--on", "node-9", "backends"], "no pod on node 'node-9'"),
        ([pod("one", phase="Pending", ready="")], ["backends"], "is ready: one .Pending.; kubectl -n storage describe"),
        ([pod("one"), pod("two", instance="b")], ["backends"], "several releases.*: storage/b storage/csi-multi; "),
        ([pod("one")], ["explain"], "give --class NAME"),
        ([pod("one")], ["explain", "--class", "gone"], "StorageClass 'gone' cannot be read"),
        ([pod("one")], ["check", "/missing.yaml"], "'/missing.yaml' cannot be read"),
        ([pod("one")], ["volume"], "unknown verb 'volume'; verbs are: check, explain"),
        ([pod("one")], ["--relaese", "b", "backends"], "unknown option '--relaese'; options before the verb"),
        ([pod("one")], ["--on"], "--on: a value is missing"),
    ],
)
def test_an_error_names_the_thing_and_the_remedy(
    plugin: Plugin, pods: list[dict[str, str]], words: list[str], says: str
) -> None:
    done = plugin(pods, *words)

    assert done.returncode in (1, 2)
    assert re.search(says, done.stderr), done.stderr
    assert done.stderr.startswith(("kubectl csi-multi: ", "Error from server"))


@pytest.mark.parametrize("words", [["-n", "storage"], ["--release", "b"]])
def test_one_of_several_releases_is_chosen_by_namespace_or_name(plugin: Plugin, words: list[str]) -> None:
    pods = [pod("one"), pod("two", namespace="elsewhere", instance="b")]

    assert "loop" in plugin(pods, *words, "--context", "mine", "backends").stdout


def test_where_pods_may_not_be_listed_everywhere_the_namespace_is_asked_for(plugin: Plugin, tmp_path: Path) -> None:
    (tmp_path / "forbidden").touch()

    assert "--namespace names the driver's" in plugin([pod("one")], "backends").stderr
