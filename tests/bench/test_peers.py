"""Other drivers are measured where they can be built, and a line says where they cannot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench import kept, peers, suite
from bench.table import Row
from scripts import performance

GO = """\
#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2 ;; esac
    shift
done
echo "$PWD" > "$out"
"""
HOST_PATH = peers.PEERS["csi-driver-host-path"]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes into the program where its sources were."""
    file = tmp_path / "go"
    file.write_text(GO)
    file.chmod(0o755)
    monkeypatch.setattr(peers, "_go", lambda: str(file))
    monkeypatch.setattr(peers, "BUILT", tmp_path / "built")
    return file


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    directory = tmp_path / "checkout"
    directory.mkdir()
    for words in (
        ("init", "-q"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-mx"),
    ):
        peers._run("git", *words, directory=directory)
    peers._run("git", "tag", "v9", directory=directory)
    return directory


def test_a_peer_is_built_from_a_given_checkout_once_per_version(go: Path, checkout: Path) -> None:
    program = HOST_PATH.build(checkout)
    go.unlink()

    assert (program.version, program.path.read_text().strip()) == ("v9", str(checkout))
    assert HOST_PATH.build(checkout) == program


def test_a_peer_that_cannot_be_built_is_told_and_is_no_failure(
    go: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    go.write_text("#!/bin/sh\necho 'no such module' >&2; exit 1\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(suite, "RESULTS", tmp_path)

    assert suite.main(["--peers", "--quick"]) == 0

    said = capsys.readouterr().err.splitlines()
    for name in suite.BESIDE:
        why = "no such module" if isinstance(peers.PEERS[name], peers.GoPeer) else "give a checkout with --peer"
        assert any(line.startswith(f"not measured: {name}: ") and why in line for line in said), said


def test_every_peer_has_a_case() -> None:
    assert set(suite.BESIDE) == set(peers.PEERS)


@pytest.mark.parametrize("words", ["csi-driver-host-path", "csi-driver-host-path=/nowhere", "other=/"])
def test_a_checkout_is_a_known_name_and_a_directory(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # nothing is measured if it is taken
    with pytest.raises(SystemExit):
        suite.main(["--peer", words])

    assert (
        "NAME=DIRECTORY with a NAME of csi-driver-host-path, rawfile-localpv, aws-ebs-csi-driver"
        in capsys.readouterr().err
    )


def case(ratio: float | None = 0.5) -> kept.Measured:
    row = Row(name="create", unit="ms", ours=10, bare=20, ratio=ratio, spread=(0.4, 0.6))
    about = {"date": "2026-01-02T03:04:05+00:00", "commit": "abc", "cpus": 2, "kernel": "6.1-x", "python": "3.11",
             "load": 0.1}  # fmt: skip
    return {"about": about, "other": "bare", "rows": [row.facts()]}


def test_figures_are_kept_until_their_case_is_measured_again(tmp_path: Path) -> None:
    file, old, new = tmp_path / "kept.json", case(0.5), case(0.7)
    kept.keep({"a": old, "b": old}, file)

    kept.keep({"b": new}, file)

    assert kept.load(file) == {"a": old, "b": new}


@pytest.mark.parametrize(("ratio", "bar"), [(0.5, 20), (1.0, 40), (2.0, 40)])
def test_the_page_has_each_ratio_as_a_figure_and_as_a_bar(ratio: float, bar: int) -> None:
    text = performance.section(case(ratio))

    assert f"| create | ms | 10.0 | 20.0 | {ratio:.2f} | 0.40 to 0.60 |  |  |" in text
    assert max(line.count("█") for line in text.splitlines()) == bar


def test_the_page_has_all_kept_cases_and_no_other() -> None:
    wanted = performance.MARKER.findall((performance.ROOT / "bench/performance.md").read_text())

    measured: Mapping[str, kept.Measured] = kept.load()
    assert sorted(wanted) == sorted(measured)
