"""What strace writes becomes the list of the changes that a server makes to its disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from csi_multi_testing.disk_changes import STRACE, TRACED, DiskChange, changes, chosen, kill_at, needs_space, traced
from csi_multi_testing.storage_server import family, is_running

LINES = """\
7 openat(AT_FDCWD</srv>, "/srv/a.new", O_WRONLY|O_CREAT|O_CLOEXEC, 0600) = 5</srv/a.new>
7 write(5</srv/a.new>, ""..., 20)          = 20
8 write(6<socket:[41]>, ""..., 9)           = 9
8 openat(AT_FDCWD</srv>, "/srv/b", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)
8 rename("/srv/b.new", "/srv/b" <unfinished ...>
7 rename("/srv/a.new", "/srv/a")          = 0
8 <... rename resumed>)                   = 0
7 unlink("/srv/none")                     = -1 ENOENT (No such file or directory)
7 write(6<socket:[41]>, ""..., 9)           = 9
7 write(5</srv/a>, ""..., 20)              = 20
7 write(2</dev/null>, ""..., 20)           = 20
7 ioctl(5</srv/a>, FICLONE, 4)            = 0
7 ioctl(5</srv/a>, TCGETS, 0x7)           = -1 ENOTTY (Inappropriate ioctl for device)
""".splitlines()


def test_calls_that_change_files_are_changes_in_their_order() -> None:
    found = [(one.call, one.number, one.text) for one in changes(LINES)]

    assert found == [
        ("openat", 1, 'openat("/srv/a.new", O_WRONLY|O_CREAT|O_CLOEXEC, 0600)'),
        ("write", 1, 'write(5</srv/a.new>, ""..., 20)'),
        ("rename", 1, 'rename("/srv/b.new", "/srv/b"'),
        ("rename", 1, 'rename("/srv/a.new", "/srv/a")'),
        ("write", 3, 'write(5</srv/a>, ""..., 20)'),
        ("ioctl", 1, "ioctl(5</srv/a>, FICLONE, 4)"),
    ]


def test_names_come_before_data_where_not_all_are_tried() -> None:
    found = [DiskChange("write", number, f"write {number}") for number in range(1, 9)]
    found[4:4] = [DiskChange("rename", 1, "rename"), DiskChange("unlink", 1, "unlink")]

    assert [one.text for one in chosen(found, 4)] == ["write 1", "rename", "unlink", "write 5"]
    assert chosen(found, 20) == found


def test_removing_needs_no_space() -> None:
    found = [DiskChange(call, 1, "") for call in ("unlinkat", "rmdir", "rename", "fremovexattr", "mkdir")]

    assert [one.call for one in found if needs_space(one)] == ["rename", "mkdir"]


@pytest.mark.skipif(not shutil.which(STRACE), reason="needs strace")
def test_a_process_is_killed_before_the_change_that_is_named(tmp_path: Path) -> None:
    code = "import os, sys\nfor name in 'ab':\n sys.stdin.readline(); os.mkdir(name)\n"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin
        with traced(family(process.pid), *kill_at(DiskChange("mkdir", 2, ""))) as trace:
            process.stdin.write("go\ngo\n")
            process.stdin.close()
            process.wait(30)
            trace.process.wait(30)
            assert trace.killed_one()

    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert not is_running(process.pid)


@pytest.mark.skipif(not shutil.which(STRACE), reason="needs strace")
def test_a_process_goes_on_when_it_is_not_traced_any_more(tmp_path: Path) -> None:
    code = "import os, sys\nfor name in 'ab':\n sys.stdin.readline(); os.mkdir(name); print(name, flush=True)\n"
    words = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, cwd=tmp_path, text=True, **pipes) as process:  # type: ignore[call-overload]
        with traced(family(process.pid), "-e", f"trace={TRACED}") as trace:
            process.stdin.write("go\n")
            process.stdin.flush()
            process.stdout.readline()
            lines = trace.end()
        process.communicate("go\n", timeout=30)

    assert process.returncode == 0
    assert [one.text for one in changes(lines)] == ['mkdir("a", 0777)']
