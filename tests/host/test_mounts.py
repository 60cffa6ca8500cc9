"""The mount table is read anew at every look, though lines that were seen before are not parsed again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from csi_multi.host import mounts

LINE = "30 1 0:40 / {} rw,relatime shared:1 - tmpfs {} rw,size=4k"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "MOUNTINFO", file)
    return file


def test_a_table_of_many_pages_is_read_to_its_end(table: Path) -> None:
    targets = [f"/mnt/{number}" for number in range(1000)]
    table.write_text("".join(LINE.format(target, "source") + "\n" for target in targets))

    assert [mount.target for mount in mounts.table()] == targets
    assert [mount.target for mount in mounts.all_at(Path("/mnt/999"), Path("/mnt/5"))] == ["/mnt/5", "/mnt/999"]


def test_of_many_paths_those_with_escapes_are_found_too(table: Path) -> None:
    table.write_text("\n".join(LINE.format(target, "source") for target in ("/mnt/a\\040b", "/mnt/a", "/mnt/ab")))

    found = mounts.all_at(Path("/mnt/a b"), Path("/mnt/a"))

    assert [mount.target for mount in found] == ["/mnt/a b", "/mnt/a"]
    assert [mount.target for mount in mounts.among(found, Path("/mnt/a"))] == ["/mnt/a"]


@pytest.mark.root
def test_each_look_sees_what_was_mounted_remounted_and_unmounted_since(tmp_path: Path) -> None:
    def run(*words: str) -> None:
        subprocess.run([*words, tmp_path], check=True)

    assert mounts.at(tmp_path) is None
    run("mount", "-t", "tmpfs", "-o", "rw", "source")
    first = mounts.at(tmp_path)
    run("mount", "-o", "remount,ro,bind")
    second = mounts.at(tmp_path)
    run("umount")

    assert first
    assert second
    assert (first.read_only, second.read_only) == (False, True)
    assert mounts.at(tmp_path) is None
