"""What interrupted operations leave is found and removed, and only what has changed is looked at. No root needed."""

import fcntl
import os

import pytest
from csi_multi_loop.leftovers import Leftovers


@pytest.fixture
def volumes(backend, tmp_path):
    backend.resume()
    return tmp_path / "pool/volumes"


@pytest.fixture
def looked(monkeypatch):
    """The names that were looked at."""
    names = []
    look = Leftovers._may_be_incomplete
    monkeypatch.setattr(Leftovers, "_may_be_incomplete", lambda self, name: names.append(name) or look(self, name))
    return names


def test_a_check_looks_at_what_has_changed_since_the_last_one(backend, requests, volumes, looked):
    for number in range(300):
        (volumes / f"v{number:03}").mkdir()
    backend.check()
    del looked[:]
    backend.check()
    assert looked == []
    backend.create_volume(requests.volume("new"))
    (volumes / ".new-killed").mkdir()
    backend.check()

    assert set(looked) == {"new", ".new-new", ".new-killed"}
    assert sorted(os.listdir(volumes))[:2] == ["new", "v000"]


def test_what_an_operation_holds_is_removed_once_the_operation_has_died(backend, volumes):
    (volumes / ".new-held").mkdir()
    held = os.open(volumes / ".new-held", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    backend.check()
    assert os.listdir(volumes) == [".new-held"]
    backend.check()
    os.close(held)  # as the end of its process does
    backend.check()

    assert os.listdir(volumes) == []


def test_a_removal_in_place_that_dies_after_a_check_is_finished_by_the_next(backend, requests, volumes):
    backend.create_volume(requests.volume("v"))
    (volumes / "v").chmod(0o1700)  # Client.remove_in_place begins with it, without space for a renaming
    backend.check()
    assert backend.get_volume("node-1/v")
    for name in ("image", "volume.json"):
        (volumes / "v" / name).unlink()
    backend.check()

    assert os.listdir(volumes) == []


def test_what_cannot_be_removed_now_is_tried_again(backend, volumes, monkeypatch, caplog):
    (volumes / ".new-full").mkdir()
    (volumes / ".new-full/foreign").mkdir()
    backend.check()
    assert "cannot be removed yet" in caplog.text
    (volumes / ".new-full/foreign").rmdir()
    backend.check()

    assert os.listdir(volumes) == []
