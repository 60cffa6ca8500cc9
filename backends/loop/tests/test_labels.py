"""Labels that are damaged, missing or newer than the driver. No root needed."""

import functools
import json
import os
import queue
from pathlib import Path
from threading import Thread

import pytest

from csi_multi.contract import (
    FEATURES,
    CapacityRequest,
    FailedPrecondition,
    PageRequest,
)
from csi_multi.loading.response_check import check_of_method

MIB = 2**20


@pytest.mark.parametrize("text", ["", "{", '{"size": "x"}', "[]", '{"version": 2}'])
def test_an_unreadable_label_is_left_out_of_listings_and_named_everywhere_else(backend, requests, image, text, caplog):
    handle = backend.create_volume(requests.volume("v")).handle
    (image(backend, handle).parent / "volume.json").write_text(text)

    assert backend.list_volumes(PageRequest()).items == ()
    assert "left out" in caplog.text
    for attempt in (lambda: backend.get_volume(handle), lambda: backend.delete_volume(handle, {})):
        with pytest.raises(FailedPrecondition, match=r"volume\.json"):
            attempt()
    assert [entry.reason for entry in backend.volume_health(handle, {})] == ["MetadataBroken"]
    assert [found.handle for found in backend.list_volume_health(PageRequest(), {}).items] == [handle]


def test_a_label_of_a_newer_driver_is_refused(backend, requests, image):
    handle = backend.create_volume(requests.volume("v")).handle
    file = image(backend, handle).parent / "volume.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))

    with pytest.raises(FailedPrecondition, match="upgrade the driver"):
        backend.get_volume(handle)


DAMAGE = {
    "size": [-1, 2**64],
    "source": ["", "x\x00", "x" * 300],
    "source_id": ["x\x00", "x" * 300],
    "created": [-1, 10**30],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in DAMAGE for value in DAMAGE[field]])
def test_a_value_that_no_label_can_hold_is_damage_and_hides_no_other_entry(backend, requests, field, value):
    damaged_label(
        backend, requests, lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    )


def nested(file):
    file.write_text('{"a":' * 50_000)


def directory(file):
    file.unlink()
    file.mkdir()


def pipe(file):
    file.unlink()
    os.mkfifo(file)


def link_to_itself(file):
    file.unlink()
    file.symlink_to(file.name)


def huge(file):
    os.truncate(file, 2**40)


@pytest.mark.parametrize("damage", [nested, directory, pipe, link_to_itself, huge])
def test_whatever_has_the_name_of_a_label_hides_no_other_entry_and_makes_nobody_wait(backend, requests, damage):
    damaged_label(backend, requests, damage)


def damaged_label(backend, requests, damage):
    """Damage the label of one volume, then of one snapshot, and check that all others are served."""
    volumes = [backend.create_volume(requests.volume(name)).handle for name in ("a", "b")]
    snapshots = [backend.create_snapshot(requests.snapshot(name, volumes[0])).handle for name in ("s", "t")]
    root = Path(backend.config.directory)
    damage(root / "snapshots" / "t" / "snapshot.json")
    damage(root / "volumes" / "b" / "volume.json")

    served = Served(backend)
    assert [found.handle for found in served.call("list_volumes", PageRequest()).items][:1] == volumes[:1]
    assert snapshots[0] in [found.handle for found in served.call("list_snapshots", PageRequest()).items]
    served.call("list_snapshots", PageRequest(), volumes[0])
    served.call("list_volume_health", PageRequest(), {})
    served.call("capacity", CapacityRequest())
    backend.resume()
    backend.check()


class Served:
    """Calls a backend as the core does: what breaks the contract is an error, and nothing may take long."""

    def __init__(self, backend):
        self._backend = backend

    def call(self, method, *arguments):
        answers = queue.SimpleQueue()
        call = functools.partial(getattr(self._backend, method), *arguments)
        Thread(target=lambda: answers.put(call()), daemon=True).start()
        answer = answers.get(timeout=30)
        declared = next(getattr(one, method) for one in FEATURES if method in vars(one))
        assert check_of_method(declared)(answer) == ""
        return answer
