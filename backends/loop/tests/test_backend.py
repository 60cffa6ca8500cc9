"""The whole backend: handles of every method, and a constructor without effects. No root needed."""

import pytest

from csi_multi.contract import (
    NotFound,
    WrongNode,
)

MIB = 2**20


@pytest.mark.parametrize("handle", ["", "v", "node-1/", "/v", "node-1/../v", "node-1/.new-v", "node-1/a/b", "node-1/A"])
def test_a_handle_of_another_shape_is_unknown(backend, handle):
    for attempt in (
        lambda: backend.get_volume(handle),
        lambda: backend.delete_volume(handle, {}),
        lambda: backend.get_snapshot(handle),
        lambda: backend.delete_snapshot(handle, {}),
        lambda: backend.node_of(handle),
        lambda: backend.find_device(handle),
        lambda: backend.volume_health(handle, {}),
    ):
        with pytest.raises(NotFound):
            attempt()


def test_a_volume_of_another_node_is_never_taken_for_gone(backend, requests):
    handle = "node-2/v"
    for attempt in (
        lambda: backend.get_volume(handle),
        lambda: backend.delete_volume(handle, {}),
        lambda: backend.delete_snapshot(handle, {}),
        lambda: backend.open_device(requests.open(handle)),
        lambda: backend.find_device(handle),
        lambda: backend.close_device(handle),
        lambda: backend.create_snapshot(requests.snapshot("s", handle)),
        lambda: backend.clone_volume(requests.copy("c", "volume", handle)),
        lambda: backend.restore_volume(requests.copy("c", "snapshot", handle)),
        lambda: backend.expand_volume(requests.expand(handle, MIB)),
    ):
        with pytest.raises(WrongNode, match=r"node-2.*node-1"):
            attempt()
    assert backend.node_of(handle) == "node-2"


def test_a_constructor_touches_nothing(connect, tmp_path):
    connect(tmp_path / "nowhere")

    assert not (tmp_path / "nowhere").exists()
