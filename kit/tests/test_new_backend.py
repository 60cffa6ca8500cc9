"""`csi-multi new-backend`: what it writes is an example under another name, and green as it is."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from csi_multi_testing import new_backend
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.new_backend import BackendNames

from csi_multi.commands import cli

ROOT = Path(__file__).parents[2]
EXAMPLES = {"local": ROOT / "examples/third-party-backend", "network": ROOT / "examples/network-backend"}
CACHES = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".venv", "build", "dist"}
SHORTEST, LONGEST, HYPHENS = "a", "abcdefghijklmnopqrst", "ab-cd-ef-gh-ij-kl-mn"
CONFIG = (
    "driver: {{name: new.csi.example.com, default_backend: one}}\nbackends:\n  one: {{kind: {}, directory: /srv/x}}\n"
)
Run = Callable[..., str]


@pytest.fixture(params=list(EXAMPLES))
def skeleton(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run() -> Run:
    """Run a command that must succeed in a directory, as a user outside of the tests; return what it prints."""

    def run(directory: Path, *words: str | Path) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
        command = [str(word) for word in words]
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-4000:]}"
        return done.stdout

    return run


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The bin directory of a virtual environment that has what this one has, to install a new package in."""
    venv.create(tmp_path / "venv", with_pip=False)
    [site] = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "above.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return tmp_path / "venv/bin"


def write(name: str, skeleton: str, directory: Path) -> Path:
    assert cli.main(["new-backend", name, f"--{skeleton}", "--dir", str(directory)]) == 0
    return directory


def texts(directory: Path) -> dict[str, str]:
    """Return the text of every file of a package, without what tools leave there."""
    files = (file for file in directory.rglob("*") if file.is_file())
    paths = (file.relative_to(directory) for file in files)
    return {str(path): (directory / path).read_text() for path in paths if not CACHES & set(path.parts)}


def test_the_examples_are_what_it_writes(skeleton: str) -> None:
    names = BackendNames(new_backend.SKELETONS[skeleton])

    assert dict(new_backend.package_files(skeleton, names)) == texts(EXAMPLES[skeleton])


def test_nothing_keeps_the_name_of_the_example(skeleton: str, tmp_path: Path) -> None:
    written = texts(write("own-store", skeleton, tmp_path))

    assert "csi_multi_own_store/backend.py" in written
    assert 'own-store = "csi_multi_own_store.backend:OwnStoreBackend"' in written["pyproject.toml"]
    old = [path for path, text in written.items() if re.search("ramdisk|filer", path + text, re.IGNORECASE)]
    assert old == []


def test_a_name_that_contains_the_example_s_name_is_kept(skeleton: str, tmp_path: Path) -> None:
    written = texts(write("ramdisk-filer", skeleton, tmp_path))

    assert 'name = "csi-multi-ramdisk-filer"' in written["pyproject.toml"]
    assert "class RamdiskFilerBackend(" in written["csi_multi_ramdisk_filer/backend.py"]


@pytest.mark.parametrize("name", [SHORTEST, LONGEST, HYPHENS])
def test_it_is_formatted_and_free_of_lint_under_every_name(name: str, skeleton: str, tmp_path: Path, run: Run) -> None:
    directory = write(name, skeleton, tmp_path)

    run(directory, sys.executable, "-m", "ruff", "check", "--no-cache", ".")
    run(directory, sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".")


def test_its_lint_is_that_of_the_project(skeleton: str, tmp_path: Path) -> None:
    own = tomllib.loads((write("own", skeleton, tmp_path) / "pyproject.toml").read_text())["tool"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]

    assert own["ruff"]["lint"]["select"] == ours["ruff"]["lint"]["select"]
    assert set(own["ruff"]["lint"]["ignore"]) <= set(ours["ruff"]["lint"]["ignore"])
    assert own["ruff"]["line-length"] == ours["ruff"]["line-length"]
    assert own["mypy"]["strict"] is ours["mypy"]["strict"] is True


def test_its_parts_of_ci_run_every_check_once(skeleton: str, run: Run) -> None:
    jobs = yaml.safe_load((EXAMPLES[skeleton] / ".github/workflows/test.yml").read_text())["jobs"]
    *parts, rest = jobs["kit"]["strategy"]["matrix"]["checks"]
    groups = [group for part in parts for group in part.split(" or ")]

    assert rest == " and ".join(f"not {group}" for group in groups)
    for one in CHECKS.values():
        assert len([group for group in groups if group in f"[{one.group}: {one.name}]"]) <= 1, one
    words = ("-p", "no:cacheprovider", "--collect-only", "-q", "-m", "root", "-k", parts[-1])
    found = [
        line for line in run(EXAMPLES[skeleton], sys.executable, "-m", "pytest", *words).splitlines() if "::" in line
    ]
    assert len(found) == len([one for one in CHECKS.values() if f"{one.group}:" in parts[-1].split(" or ")])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "cannot be the name of a backend"),
        ("Mine", "cannot be the name of a backend"),
        ("my_store", "cannot be the name of a backend"),
        ("1st", "cannot be the name of a backend"),
        ("my--store", "cannot be the name of a backend"),
        ("mine-", "cannot be the name of a backend"),
        ("../mine", "cannot be the name of a backend"),
        ("mine\n", "cannot be the name of a backend"),
        (LONGEST + "u", "use at most 20 of a-z, 0-9 and '-'"),
        ("loop", "kind 'loop' is taken by package csi-multi-loop, which is installed; use another name"),
        ("testing", "a package csi_multi_testing is installed already; use another name"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_written(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "new"

    assert cli.main(["new-backend", name, "--dir", str(directory)]) == 2
    assert reason in capsys.readouterr().err
    assert not directory.exists()


def test_a_directory_that_holds_anything_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("mine")

    assert cli.main(["new-backend", "own", "--dir", str(tmp_path)]) == 2
    assert f"directory {tmp_path} is not empty; name another by --dir" in capsys.readouterr().err
    assert cli.main(["new-backend", "own", "--dir", str(tmp_path / "README.md")]) == 2
    assert "Not a directory" in capsys.readouterr().err
    assert texts(tmp_path) == {"README.md": "mine"}


def test_a_directory_that_cannot_be_written_is_an_error_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new-backend", "own", "--dir", "/proc/self/new"]) == 2
    assert "cannot write /proc/self/new: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("exists", [False, True])
def test_when_a_file_cannot_be_written_nothing_is_and_the_next_try_writes_all(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "new"
    if exists:
        directory.mkdir()
    write_text = Path.write_text

    def full(self: Path, data: str, encoding: str | None = None) -> int:
        if self.name == "backend.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_text(self, data, encoding)

    monkeypatch.setattr(Path, "write_text", full)
    assert cli.main(["new-backend", "own", "--dir", str(directory)]) == 2
    assert f"cannot write {directory}: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == ([directory] if exists else [])

    monkeypatch.undo()
    assert cli.main(["new-backend", "own", "--dir", str(directory)]) == 0
    assert (directory / "csi_multi_own/backend.py").exists()
    assert not list(tmp_path.rglob(".new-backend-*"))


def test_what_tools_leave_in_a_checkout_is_not_a_part_of_a_package(tmp_path: Path) -> None:
    for path in (
        ".pytest_cache/v/x",
        ".mypy_cache/x",
        ".ruff_cache/x",
        "__pycache__/x",
        "checks/.coverage",
        "test_x.py",
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    assert [path for path, _ in new_backend._below("tests", tmp_path)] == ["tests/test_x.py"]


def test_without_a_directory_it_writes_to_one_of_the_distribution_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert new_backend.new_backend(Namespace(name="own", skeleton="local", dir=None)) == 0
    assert (tmp_path / "csi-multi-own/csi_multi_own/backend.py").exists()
    written = sum(path.is_file() for path in (tmp_path / "csi-multi-own").rglob("*"))
    assert f"wrote {written} files to csi-multi-own: a backend of kind 'own'" in capsys.readouterr().out


def test_a_backend_is_either_local_or_on_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["new-backend", "own", "--local", "--network"])
    assert "not allowed with argument --local" in capsys.readouterr().err


@pytest.mark.root
@pytest.mark.slow
def test_a_new_backend_is_green_from_the_first_minute(
    skeleton: str, tmp_path: Path, environment: Path, run: Run
) -> None:
    if skeleton == "local" and not os.environ.get("MATRIX"):
        pytest.skip("make matrix: the walk-through of the guide makes a local one")
    directory = write("own-store", skeleton, tmp_path / "new")
    python = environment / "python"
    install = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-build-isolation")
    run(directory, python, *install, "--editable", ".")
    (tmp_path / "csi.yaml").write_text(CONFIG.format("own-store"))

    assert "csi_multi_own_store.backend:OwnStoreBackend" in run(directory, python, "-m", "csi_multi", "backends")
    checked = run(directory, python, "-m", "csi_multi", "check", tmp_path / "csi.yaml")
    assert "backend one (default): own-store: " in checked
    assert "CREATE_DELETE_VOLUME" in checked
    assert "Success" in run(directory, python, "-m", "mypy", "--cache-dir", tmp_path / "mypy")
    tested = run(directory, python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert re.search(r"^\d{3} passed, \d+ skipped", tested, re.MULTILINE), tested[-2000:]
