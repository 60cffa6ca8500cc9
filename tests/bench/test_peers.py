"""Other drivers are measured where they can be built, and a line says where they cannot."""

from __future__ import annotations

import os
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
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program"
    file.write_text("#!/bin/sh\n[ $1 = --version ] && printf 'Some Version: v3.0\\nGit Commit: abc\\n'\n")
    file.chmod(0o755)
    return file


def test_a_peer_is_built_from_its_module_once(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_module", lambda *_: tmp_path)
    built = HOST_PATH.build(None)
    go.write_text("#!/bin/sh\nexit 1\n")

    assert built.path.read_text().strip() == str(tmp_path)
    assert HOST_PATH.build(None) == built


def test_a_given_program_in_go_has_the_version_of_its_module(go: Path, program: Path) -> None:
    go.write_text("#!/bin/sh\nprintf '%s: go1.26\\n\\tpath\\tx/cmd\\n\\tmod\\tx\\tv9.1.0\\n' \"$3\"\n")

    assert HOST_PATH.build(program) == peers.Program(path=program, version="v9.1.0")


def test_a_driver_in_python_is_a_directory_with_an_environment_and_sources(tmp_path: Path) -> None:
    peer = peers.PEERS["rawfile-localpv"]
    with pytest.raises(peers.PeerMissing, match="has no venv/bin/python"):
        peer.build(tmp_path)
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch()
    (tmp_path / "sources").mkdir()

    assert peer.build(tmp_path).path == tmp_path


CEPH_CSI = peers.PEERS["ceph-csi"]


def test_a_peer_that_is_not_built_here_is_given_as_a_program(program: Path) -> None:
    assert CEPH_CSI.build(program) == peers.Program(path=program, version="v3.0")


def test_a_given_program_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")

    for given, why in ((tmp_path, "no program"), (tmp_path / "text", "no program"), (None, "--peer ceph-csi=PROGRAM")):
        with pytest.raises(peers.PeerMissing, match=why):
            CEPH_CSI.build(given)


def test_a_peer_that_cannot_be_built_is_told_and_is_no_failure(
    go: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    go.write_text("#!/bin/sh\necho 'no such module' >&2; exit 1\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(suite, "RESULTS", tmp_path)

    assert suite.main(["--peers", "--quick"]) == 0

    said = capsys.readouterr().err.splitlines()
    for name in suite.BESIDE:
        peer = peers.PEERS[name]
        why = "no such module" if isinstance(peer, peers.GoPeer) else f"with --peer {name}="
        assert any(line.startswith(f"not measured: {name}: ") and why in line for line in said), said


def test_every_peer_has_a_case() -> None:
    assert set(suite.BESIDE) == set(peers.PEERS)


@pytest.mark.parametrize("words", ["csi-driver-host-path", "csi-driver-host-path=/nowhere", "other=/"])
def test_what_is_given_is_a_known_name_and_a_place_that_exists(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # nothing is measured if it is taken
    with pytest.raises(SystemExit):
        suite.main(["--peer", words])

    names = "csi-driver-host-path, rawfile-localpv, csi-driver-lvm, aws-ebs-csi-driver, ceph-csi"
    assert f"is not NAME=DIRECTORY or NAME=PROGRAM, with a NAME of {names}" in capsys.readouterr().err


def case(ratio: float | None = 0.5) -> kept.Measured:
    row = Row(name="create", unit="ms", ours=10, bare=20, ratio=ratio, spread=(0.4, 0.6), note="why " * 40)
    about = {"date": "2026-01-02T03:04:05+00:00", "commit": "abc", "cpus": 2, "kernel": "6.1-x", "python": "3.11",
             "load": 0.1, "processor": "a processor", "csi-multi": "1.2", "grpcio": "1.9"}  # fmt: skip
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


def test_a_ratio_of_hundreds_leaves_the_mark_of_equality_in_the_first_column() -> None:
    small, large = case(0.5), case(200.0)

    text = performance.section({**small, "rows": [*small["rows"], *large["rows"]]})

    assert "create  │ 0.50" in text
    assert f"create  {'█' * 40} 200.00" in text
    assert "ours / bare  1\n" in text


def test_the_page_tells_what_was_measured_where_and_how() -> None:
    text = performance.section(case())

    head = text.partition("\n\n")[0].replace("\n", " ")
    for fact in ("2026-01-02", "`abc`", "csi-multi 1.2", "2 processors (a processor)", "Linux 6.1-x", "Python 3.11"):
        assert fact in head
    assert "- create: why why" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_page_says_what_was_not_measured() -> None:
    assert performance.section(None) == "Not measured yet."


def test_the_page_has_a_place_for_every_case() -> None:
    places = performance.MARKER.findall((performance.ROOT / "bench/performance.md").read_text())

    assert sorted(places) == sorted([*suite.CASES, *suite.BESIDE])


@pytest.fixture
def measurable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, go: Path) -> Path:
    """A suite whose cases have one row each, and a file for what is kept."""
    file = tmp_path / "kept.json"

    def measure(directory: Path, *, quick: bool, program: peers.Program | None = None) -> list[Row]:
        return [Row(name="one", unit="s", ours=1)]

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    monkeypatch.setattr(kept, "FILE", file)
    for cases in (suite.CASES, suite.BESIDE):
        for name in cases:
            monkeypatch.setitem(cases, name, measure)
    return file


def test_one_peer_can_be_measured_alone(measurable: Path, program: Path) -> None:
    words = ["--only", "rpc", "--only", CEPH_CSI.name, "--peer", f"{CEPH_CSI.name}={program}", "--keep"]
    assert suite.main(words) == 0

    found = kept.load(measurable)
    assert {name: one["other"] for name, one in found.items()} == {
        "rpc": "bare",
        CEPH_CSI.name: f"{CEPH_CSI.name} v3.0",
    }


def test_what_was_measured_is_kept_when_a_later_case_fails(measurable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(directory: Path, *, quick: bool) -> list[Row]:
        raise suite.Unmeasurable("no luck")

    monkeypatch.setitem(suite.CASES, "start", broken)

    assert suite.main(["--only", "rpc", "--only", "start", "--keep"]) == 1

    assert list(kept.load(measurable)) == ["rpc"]


def test_figures_of_few_rounds_are_not_kept(measurable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        suite.main(["--only", "rpc", "--quick", "--keep"])

    assert "--keep" in capsys.readouterr().err
    assert not measurable.exists()
