"""The instance's directory: mounted, writable, and what is reported when it is not."""

import pytest

from csi_multi.contract import (
    PageRequest,
    Unavailable,
)

MIB = 2**20


def test_a_missing_mount_is_noticed_by_every_operation(connect, requests, tmp_path):
    (tmp_path / "pool").mkdir()
    backend = connect(require_mount=True)
    for attempt in (
        backend.check,
        backend.resume,
        lambda: backend.create_volume(requests.volume("v")),
        lambda: backend.delete_volume("node-1/v", {}),
        lambda: backend.get_volume("node-1/v"),
        lambda: backend.list_volumes(PageRequest()),
    ):
        with pytest.raises(Unavailable, match="not a mount point"):
            attempt()
    assert list((tmp_path / "pool").iterdir()) == []
    assert [entry.reason for entry in backend.node_storage_health({})] == ["DirectoryUnreachable"]


@pytest.mark.root
def test_a_read_only_filesystem_is_reported(filesystem, connect, host, requests):
    directory = filesystem("ext4", 64 * MIB)
    backend = connect(directory / "pool")
    handle = backend.create_volume(requests.volume("v")).handle
    backend.check()
    host.run("mount", "-o", "remount,ro", str(directory))

    with pytest.raises(Unavailable, match="read-only"):
        backend.check()
    for attempt in (lambda: backend.create_volume(requests.volume("w")), lambda: backend.delete_volume(handle, {})):
        with pytest.raises(Unavailable, match="Read-only"):
            attempt()
    assert [entry.reason for entry in backend.node_storage_health({})] == ["DirectoryReadOnly"]
    assert backend.get_volume(handle)


@pytest.mark.root
def test_a_required_mount_is_a_filesystem_of_its_own(filesystem, mount, connect, requests, tmp_path):
    backend = connect(filesystem("tmpfs", 32 * MIB), require_mount=True)
    backend.check()
    assert backend.create_volume(requests.volume("v"))

    (tmp_path / "plain").mkdir()
    bound = connect(mount(tmp_path / "plain", tmp_path / "bound", "--bind"), require_mount=True)
    with pytest.raises(Unavailable, match="not a mount point of its own"):
        bound.check()
