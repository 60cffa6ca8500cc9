"""Which features mkfs may use with the running kernel."""

from __future__ import annotations

import pytest

from csi_multi.node import kernel_features


@pytest.fixture
def profiles(tmp_path):
    for version in ("4.19", "5.10", "6.1"):
        text = f"# {version}\n[metadata]\nnrext64=0\nbigtime={int(version > '5')}\n\n[inode]\nsparse=1\n"
        (tmp_path / f"lts_{version}.conf").write_text(text)
    (tmp_path / "dax_x86_64.conf").write_text("[block]\nsize=4096\n")
    return tmp_path


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ((4, 18), "bigtime=0"),
        ((4, 19), "bigtime=0"),
        ((5, 9), "bigtime=0"),
        ((5, 10), "bigtime=1"),
        ((6, 1), "bigtime=1"),
    ],
)
def test_xfs_takes_the_newest_profile_the_kernel_knows(profiles, kernel, expected):
    assert kernel_features.xfs_arguments(kernel, profiles) == ["-i", "nrext64=0,sparse=1", "-m", expected]


def test_xfs_takes_no_profile_for_a_kernel_newer_than_all(profiles, tmp_path):
    assert kernel_features.xfs_arguments((6, 2), profiles) == []
    assert kernel_features.xfs_arguments((5, 15), tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("release", "expected"),
    [("6.18.44-fc-v657", (6, 18)), ("5.15.0-105-generic", (5, 15)), ("4.18.0-553.el8", (4, 18)), ("odd", (0, 0))],
)
def test_a_release_is_read(release, expected):
    assert kernel_features.parse_release(release) == expected
