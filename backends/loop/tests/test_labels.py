"""Labels that are damaged, missing or newer than the driver. No root needed."""

import json

import pytest

from csi_multi.contract import (
    FailedPrecondition,
    PageRequest,
)

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
