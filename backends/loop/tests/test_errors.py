"""Errors of the operating system become errors of the contract."""

import errno
import os

import pytest
from csi_multi_loop.errors import translated

from csi_multi.contract import OutOfRange, ResourceExhausted, Unavailable

MIB = 2**20


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ResourceExhausted),
        (errno.EDQUOT, ResourceExhausted),
        (errno.EFBIG, OutOfRange),
        (errno.EROFS, Unavailable),
        (errno.EIO, Unavailable),
        (errno.ESTALE, Unavailable),  # not in the table
    ],
)
def test_an_error_names_the_action_the_file_and_a_remedy(number, kind):
    text = rf"^creating a volume failed: /pool/x: {os.strerror(number)}; \w+"
    with pytest.raises(kind, match=text) as caught, translated("creating a volume"):
        raise OSError(number, os.strerror(number), "/pool/x")
    assert type(caught.value) is kind


@pytest.mark.root
def test_a_disk_that_fills_up_during_a_copy_leaves_nothing_behind(
    connect, requests, image, filesystem, crash, leftovers
):
    directory = filesystem("tmpfs", 32 * MIB) / "pool"
    backend = connect(directory, overprovision=4)
    source = backend.create_volume(requests.volume("v", 8 * MIB)).handle
    image(backend, source).write_bytes(os.urandom(8 * MIB))
    hog = directory / "hog"

    def fill():
        free = os.statvfs(directory)
        hog.write_bytes(bytes(free.f_bavail * free.f_frsize - MIB))

    for attempt in (
        lambda: backend.create_snapshot(requests.snapshot("s", source)),
        lambda: backend.clone_volume(requests.copy("c", "volume", source)),
    ):
        with crash.before("os.truncate", fill), pytest.raises(ResourceExhausted, match="No space left"):
            attempt()
        hog.unlink()
        assert leftovers(backend) == []
        attempt()
        assert leftovers(backend) == []
    assert sorted(path.name for path in (directory / "volumes").iterdir()) == ["c", "v"]
