"""What the configuration and the StorageClass parameters accept. No root needed."""

import msgspec
import pytest
from csi_multi_loop.config import Config, Parameters

from csi_multi.contract import InvalidArgument
from csi_multi.contract.params import parse


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("directory", "relative/path"),
        ("directory", "/trailing/slash/"),
        ("reserve_percent", 91),
        ("reserve_bytes", -1),
        ("overprovision", 0.5),
        ("min_size", 4095),
        ("max_size", -1),
        ("default_size", 0),
        ("require_mount", "yes"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused(key, value):
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.convert({"directory": "/srv/pool", key: value}, type=Config)


def test_only_the_directory_is_required():
    config = msgspec.convert({"directory": "/srv/pool"}, type=Config)

    assert (config.reserve_percent, config.overprovision, config.require_mount) == (5, 1.0, False)
    with pytest.raises(msgspec.ValidationError, match="directory"):
        msgspec.convert({}, type=Config)


@pytest.mark.parametrize(("text", "sector_size"), [("512", 512), ("4096", 4096)])
def test_a_sector_size_is_512_or_4096(text, sector_size):
    assert parse(Parameters, {"sectorSize": text}, "parameters").sector_size == sector_size
    with pytest.raises(InvalidArgument, match="sectorSize"):
        parse(Parameters, {"sectorSize": "1024"}, "parameters")
