"""What the configuration accepts."""

from __future__ import annotations

import msgspec
import pytest

from csi_multi_ramdisk.config import Config


@pytest.mark.parametrize("directory", ["", "relative", "/trailing/"])
def test_the_directory_is_an_absolute_path(directory: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="directory"):
        msgspec.convert({"directory": directory}, type=Config)
    assert msgspec.convert({"directory": "/mnt/ram"}, type=Config).directory == "/mnt/ram"
