"""The names of entries are those in the directory, in order, whoever changes it. No root needed."""

import errno
import os
import random

import pytest
from csi_multi_loop import entry_names
from csi_multi_loop.changes import Changes
from csi_multi_loop.entry_names import EntryNames


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "volumes").mkdir()
    return tmp_path / "volumes"


@pytest.fixture
def names(directory):
    return EntryNames(directory, Changes())


def present(directory):
    return sorted(name for name in os.listdir(directory) if not name.startswith("."))


@pytest.fixture
def listed(monkeypatch):
    """The directories that were read whole."""
    found = []
    read = os.listdir
    monkeypatch.setattr(entry_names.os, "listdir", lambda path: found.append(path) or read(path))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_names_that_come_and_go_in_any_order_are_listed_as_they_are(names, directory, seed):
    chance = random.Random(seed)
    for _ in range(60):
        for _ in range(chance.choice((0, 1, 3, 100))):
            name = f"v{chance.randrange(40):02}"
            new, gone = directory / f".new-{name}", directory / f".gone-{name}"
            if not (directory / name).exists():
                new.mkdir()
                new.rename(directory / name)
            elif chance.random() < 0.5:
                (directory / name).rename(gone)
                gone.rmdir()
            else:
                os.utime(directory / name)
        assert names.current() == present(directory)


def test_a_directory_that_does_not_change_is_read_once(names, directory, listed):
    for number in range(500):
        (directory / f"v{number:03}").mkdir()
    names.current()
    del listed[:]
    (directory / "v1000").mkdir()
    (directory / "v250").rmdir()

    assert "v1000" in names.current()
    assert len(names.current()) == 500
    assert listed == []


def test_after_many_changes_the_directory_is_read_whole(names, directory, listed):
    names.current()
    del listed[:]
    for number in range(100):
        (directory / f"v{number:03}").mkdir()

    assert names.current() == present(directory)
    assert len(listed) == 1 + 1  # the second is this test's own


def test_what_an_error_kept_from_being_read_is_found_later(names, directory, monkeypatch):
    names.current()
    (directory / "a").mkdir()

    def fail(*_):
        raise OSError(errno.EIO, "disk error")

    with monkeypatch.context() as patch:
        patch.setattr(entry_names, "exists", fail)
        with pytest.raises(OSError, match="disk error"):
            names.current()
    assert names.current() == ["a"]


def test_a_directory_that_is_made_later_or_replaced_is_read_anew(names, directory):
    directory.rmdir()
    assert names.current() == []
    directory.mkdir()
    (directory / "a").mkdir()
    assert names.current() == ["a"]
    directory.rename(directory.with_name("old"))
    assert names.current() == []
    directory.mkdir()
    assert names.current() == []


def test_the_list_is_the_callers_own(names, directory):
    (directory / "a").mkdir()
    names.current().clear()

    assert names.current() == ["a"]


def test_foreign_names_are_left_out(names, directory):
    names.current()
    for name in ("Upper", "a_b", "x" * 50, ".new-a", ".gone-b"):
        (directory / name).mkdir()

    assert names.current() == []
