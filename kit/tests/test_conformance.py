"""`csi-multi conformance` over backends in memory: exit codes, what is refused, what an interrupted run leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from csi_multi_testing import conformance, instance_under_test, memory, storage_file
from csi_multi_testing.assertions import expect
from csi_multi_testing.check import Check
from csi_multi_testing.context import CheckContext, in_process
from csi_multi_testing.driver import only_instance
from csi_multi_testing.instance_under_test import InstanceUnderTest
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.protocol import Target, VolumeSpec
from csi_multi_testing.secret_watch import MARKED
from csi_multi_testing.storage import Storage

from csi_multi.commands import cli
from csi_multi.config.document import ConfigError
from csi_multi.config.settings import Config, load_config
from csi_multi.contract import Clone, NotFound, Strings, Volume, VolumeRequest
from csi_multi.loading.loader import UnusableBackend
from csi_multi.process.driver_process import NotServing

FILE = """\
driver: {name: kit.csi-multi.example, node: node-1, cluster: kit}
backends:
  kit: {kind: memory}
  other: {kind: memory}
"""
Conform = Callable[..., int]


def deletes(t: CheckContext) -> None:
    made = t.volume()
    t.client.delete(made.handle)
    with t.refused(NotFound, what="get_volume after delete_volume"):
        t.client.get(made.handle)


def finds(t: CheckContext) -> None:
    spec = t.spec()
    expect(t.create(spec) == t.backend.find_volume(spec.name), "find_volume: another volume")


def marks(t: CheckContext) -> None:
    sent = t.in_process.request(t.spec()).secrets
    expect(sent.items() >= MARKED.items(), "the secret of the kit is not sent")


def own(name: str, body: Callable[[CheckContext], None], target: Target) -> Check:
    return Check(name=name, group="own", body=body, features=(), needs=(), data=False, target=target)


OWN = [
    own("it deletes", deletes, Target.ANY),
    own("it finds", finds, Target.BACKEND),
    own("it sends the secret of the kit", marks, Target.BACKEND),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "csi.yaml"
    file.write_text(FILE)
    return file


@pytest.fixture
def conform(file: Path, monkeypatch: pytest.MonkeyPatch, driver_of: Any) -> Conform:
    """Run the verb over a storage: conform(storage, "--yes", ...)."""

    def conform(storage: Storage, *words: str) -> int:
        def load(settings: Config, _described: storage_file.StorageFile) -> InstanceUnderTest:
            return InstanceUnderTest(settings, type(storage.backend()), "memory 1.0", replace(storage, resources=None))

        monkeypatch.setattr(instance_under_test, "load", load)
        monkeypatch.setattr(conformance, "InstanceDriver", lambda _settings: driver_of(storage, file.parent))
        monkeypatch.setattr(conformance, "CHECKS", {one.name: one for one in OWN})
        standard = ["--config", str(file), "--backend", "kit", "--sanity", "no"]
        return cli.main(["conformance", *standard, *words])

    return conform


class Hoarder(MemoryBackend):
    """Deletes nothing."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)


def test_a_backend_that_keeps_the_rules_passes(conform: Conform, capsys: pytest.CaptureFixture[str]) -> None:
    code = conform(memory.storage())

    out = capsys.readouterr().out
    assert code == 0
    assert "own: it deletes (wire)" in out
    assert "own: it finds (backend)" in out
    assert "instance: the driver ends at SIGTERM" in out
    assert "passed: " in out.splitlines()[-1]


def test_a_broken_backend_fails_and_the_report_names_the_check(
    conform: Conform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "report.json", tmp_path / "report.xml"

    code = conform(memory.storage(Hoarder), "--json", str(files[0]), "--junit", str(files[1]))

    assert code == 1
    assert "FAILED  own: it deletes (wire)\n    get_volume after delete_volume: succeeded" in capsys.readouterr().out
    report = json.loads(files[0].read_text())
    assert report["schema"] == 1
    assert report["backend"]["package"] == "memory 1.0"
    assert [one["state"] for one in report["results"] if one["name"] == "it deletes"] == ["failed"]
    case = next(one for one in ElementTree.parse(files[1]).iter("testcase") if one.get("name") == "it deletes")
    assert "get_volume after delete_volume" in str(case.find("failure").get("message"))  # type: ignore[union-attr]


class Careless(MemoryBackend):
    """Raises what is in no tree."""

    def find_volume(self, name: str) -> Volume:
        raise KeyError(name)


def test_an_unexpected_error_comes_with_its_traceback(
    conform: Conform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conform(memory.storage(Careless)) == 1

    assert "FAILED  own: it finds (backend)\n    find_volume raised KeyError: " in capsys.readouterr().out
    assert "in find_volume\n" in (tmp_path / "failure-1.log").read_text()


def test_a_driver_that_does_not_start_fails_and_the_backend_is_still_judged(
    conform: Conform, driver_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_self: Any) -> Any:
        raise NotServing("it ended with exit code 3")

    monkeypatch.setattr(driver_of, "start", refuse)

    assert conform(memory.storage()) == 1
    out = capsys.readouterr().out
    assert "FAILED  instance: the driver starts (wire)\n    it ended with exit code 3" in out
    assert "own: it finds (backend)" in out


def test_what_a_run_leaves_behind_is_named(conform: Conform, capsys: pytest.CaptureFixture[str]) -> None:
    assert conform(memory.storage(Hoarder)) == 1

    out = capsys.readouterr().out
    assert "FAILED  instance: the listing after the run equals the listing before it" in out
    assert "    new: volume kit-" in out
    assert "names of this run contain" in out


class Interrupting(MemoryBackend):
    """A signal comes while the first volume is made."""

    came = False

    def create_volume(self, request: VolumeRequest) -> Volume:
        if not Interrupting.came:
            Interrupting.came = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().create_volume(request)


def test_an_interrupted_run_cleans_up_and_says_so(
    conform: Conform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, file = memory.storage(Interrupting), tmp_path / "report.json"

    code = conform(storage, "--json", str(file))

    assert code == 1
    assert "stopped early" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["complete"] is False
    assert [one["state"] for one in report["results"] if one["group"] == "instance"] == ["passed", "passed"]
    assert storage.resources is not None
    assert list(storage.resources()) == []


def test_an_instance_that_holds_something_is_not_touched_without_consent(
    conform: Conform, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = memory.storage()
    in_process(storage).client.create(VolumeSpec(name="precious"))

    refused, allowed = conform(storage), conform(storage, "--yes")

    assert (refused, allowed) == (2, 0)
    assert "lists 1 volumes and snapshots now" in capsys.readouterr().out
    assert storage.resources is not None
    assert sorted(storage.resources()) == ["volumes precious"]


@pytest.mark.parametrize(
    "hook", ["away: [umount, /srv/x]\n  back: [mount, /srv/x]", "damage: [rm]", "power_cut: [reset]"]
)
def test_a_hook_that_can_hit_every_volume_needs_consent(
    conform: Conform, tmp_path: Path, capsys: pytest.CaptureFixture[str], hook: str
) -> None:
    described = tmp_path / "storage.yaml"
    described.write_text(f"storage:\n  {hook}\n")

    codes = [conform(memory.storage(), "--storage", str(described), *words) for words in ([], ["--yes"])]

    said = capsys.readouterr()
    assert codes == [2, 0]
    name = hook.partition(":")[0]
    assert f"WARNING: every volume of that storage can be hit by {name} of --storage" in said.out
    assert f"test an instance that lists nothing, without {name}" in said.err


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 2), ("no", 2)])
def test_a_terminal_is_asked(conform: Conform, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _prompt: answer)

    assert conform(memory.storage()) == code


def test_the_size_is_one_that_the_backend_makes(file: Path) -> None:
    storage, settings = memory.storage(size=5000), only_instance(load_config(file), "kit")

    assert InstanceUnderTest(settings, MemoryBackend, "memory 1.0", storage).with_real_size().storage.size == 8192
    assert (
        InstanceUnderTest(settings, Hoarder, "memory 1.0", memory.storage(Hoarder)).with_real_size().storage.size
        == 16 << 20
    )


class Down(MemoryBackend):
    """Its storage answers nothing that makes sense."""

    def list_volumes(self, page: Any) -> Any:
        raise KeyError("volumes")


def test_an_instance_that_cannot_be_asked_fails_with_the_reason(
    conform: Conform, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conform(memory.storage(Down)) == 1
    assert "backend 'kit' cannot be tested: listing its volumes raised KeyError" in capsys.readouterr().err


def test_a_broken_package_fails_with_the_reason(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> InstanceUnderTest:
        raise UnusableBackend("package memory 1.0: lacks find_volume")

    monkeypatch.setattr(instance_under_test, "load", broken)

    assert cli.main(["conformance", "--config", str(file), "--backend", "kit"]) == 1
    assert "lacks find_volume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--backend", "kti"], "unknown instance 'kti'; did you mean 'kit'?"),
        (["--backend", "kit"], "unknown kind 'memory'"),
        (["--backend", "kit", "--only", "no such check"], "--list shows all of them"),
        (["--backend", "kit", "--sanity", "/no/such/program"], "no such program"),
        (["--backend", "kit", "--json", "/no/such/directory/report"], "cannot be written"),
        ([], "--backend NAME are required"),
    ],
)
def test_bad_usage_is_told_before_anything_runs(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert cli.main(["conformance", "--config", str(file), *words]) == 2
    assert text in capsys.readouterr().err


def test_the_list_tells_what_a_check_and_a_file_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance, "CHECKS", {one.name: replace(one, features=(Clone,), data=True) for one in OWN})

    assert cli.main(["conformance", "--list", "--only", "finds"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "own: it finds (backend; needs Clone, the data of volumes)"
    assert any(line.startswith("  nodes: node ids") for line in lines)


def test_a_storage_file_becomes_a_storage(tmp_path: Path, file: Path) -> None:
    described = tmp_path / "storage.yaml"
    described.write_text(
        "storage:\n  size: 1024\n  nodes: ['n1;kit=i-1', n2]\n  files: [/srv]\n  unreachable: [{zone: b}]\n"
    )
    settings = only_instance(load_config(file), "kit")

    made = storage_file.storage(storage_file.load(described), settings, memory.storage().connect)

    assert (made.size, made.files, made.unreachable) == (1024, (Path("/srv"),), ({"zone": "b"},))
    assert [(node.name, node.fact, node.id) for node in made.nodes] == [("n1", "i-1", "n1;kit=i-1"), ("n2", "", "n2")]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("storage:\n  siez: 1", r"storage.yaml:2: storage: unknown key 'siez'; did you mean 'size'\?"),
        ("storage:\n  size: none", r"storage.yaml:2: storage: 'size': expected `int`"),
        ("storage: 1", "'storage' must be a mapping"),
        ("size: 1", "unknown key 'size'"),
    ],
)
def test_a_wrong_storage_file_is_told_with_its_line(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "storage.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=error):
        storage_file.load(file)


WITHOUT = """\
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pytest", "_pytest", "hypothesis"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Absent())
from csi_multi.commands.cli import main
sys.exit(main(["conformance", "--list"]))
"""


def test_neither_pytest_nor_hypothesis_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
