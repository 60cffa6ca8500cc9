"""Files are read whole, also when they are larger than one read."""

from __future__ import annotations

from pathlib import Path

import pytest

from csi_multi.host import small_files


@pytest.mark.parametrize("size", [0, 1, small_files.AT_ONCE - 1, small_files.AT_ONCE, 2 * small_files.AT_ONCE + 1])
def test_a_file_is_read_whole(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * (size // 256) + bytes(size % 256))

    assert small_files.read(file) == file.read_bytes()


def test_a_file_that_does_not_exist_raises_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        small_files.read(tmp_path / "absent")
