"""What is wrong with images, devices and the directory."""

import shutil

import pytest

from csi_multi.contract import (
    FailedPrecondition,
    PageRequest,
)

MIB = 2**20


def test_a_lost_or_shortened_image_is_reported_and_never_repaired(backend, requests, image):
    short, lost = (backend.create_volume(requests.volume(name)).handle for name in ("short", "lost"))
    backend.create_volume(requests.volume("fine"))
    with image(backend, short).open("r+b") as file:
        file.truncate(MIB)
    image(backend, lost).unlink()

    for handle, reason in ((short, "BackingFileTruncated"), (lost, "BackingFileMissing")):
        for attempt in (
            lambda handle=handle: backend.open_device(requests.open(handle)),
            lambda handle=handle: backend.expand_volume(requests.expand(handle, 20 * MIB)),
            lambda handle=handle: backend.create_snapshot(requests.snapshot("s", handle)),
            lambda handle=handle: backend.clone_volume(requests.copy("c", "volume", handle)),
        ):
            with pytest.raises(FailedPrecondition, match="image"):
                attempt()
        assert [(entry.status.name, entry.reason) for entry in backend.volume_health(handle, {})] == [
            ("DATA_LOSS", reason)
        ]
        assert [entry.reason for entry in backend.node_volume_health(handle)] == [reason]
    assert [found.handle for found in backend.list_volume_health(PageRequest(), {}).items] == [lost, short]
    assert image(backend, short).stat().st_size == MIB
    for handle in (short, lost):
        backend.delete_volume(handle, {})


def test_a_volume_without_label_and_image_is_told_to_lack_both(backend, requests, image):
    handle = backend.create_volume(requests.volume("both")).handle
    image(backend, handle).with_name("volume.json").write_text("")
    image(backend, handle).unlink()

    for entries in (backend.volume_health(handle, {}), backend.list_volume_health(PageRequest(), {}).items[0].entries):
        assert [entry.reason for entry in entries] == ["MetadataBroken", "BackingFileMissing"]


@pytest.mark.root
def test_a_deleted_backing_file_is_noticed_and_its_device_never_reused(backend, requests, image, volume, mounted):
    path = image(backend, volume)
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    path.unlink()
    reasons = {entry.reason for entry in backend.node_volume_health(volume)}
    copy.rename(path)

    assert reasons == {"BackingFileMissing", "BackingFileDeleted"}
    assert [entry.reason for entry in backend.node_volume_health(volume)] == ["BackingFileDeleted"]
    with pytest.raises(FailedPrecondition, match="in use"):
        backend.open_device(requests.open(volume))
    assert backend.find_device(volume) is not None


@pytest.mark.root
def test_a_full_disk_is_reported(filesystem, connect):
    directory = filesystem("tmpfs", 32 * MIB)
    backend = connect(directory / "pool")
    backend.check()
    assert backend.node_storage_health({}) == ()
    (directory / "hog").write_bytes(bytes(31 * MIB))

    assert [entry.reason for entry in backend.node_storage_health({})] == ["DirectoryAlmostFull"]
