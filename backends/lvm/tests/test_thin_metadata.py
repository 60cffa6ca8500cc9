"""What thin_dump and thin_delta print is read as what the metadata holds."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from csi_multi_lvm.thin_metadata import ALLOCATED, CHANGED, ThinMetadata, ranges

from csi_multi.contract import Busy, Result, Unavailable
from csi_multi.host.command import ENVIRONMENT, LocalHost

CHUNK = 65536
BLOCKS = 64
needs_programs = pytest.mark.skipif(
    not shutil.which("thin_restore", path=ENVIRONMENT["PATH"]), reason="thin-provisioning-tools are not installed"
)
Mapping_ = Mapping[int, int]  # blocks of a volume, to blocks of the pool


def metadata_of(*volumes: Mapping_) -> str:
    devices = "".join(
        f'<device dev_id="{number}" mapped_blocks="{len(one)}" transaction="0" creation_time="0" snap_time="0">'
        + "".join(f'<single_mapping origin_block="{at}" data_block="{to}" time="0"/>' for at, to in sorted(one.items()))
        + "</device>"
        for number, one in enumerate(volumes, 1)
    )
    head = 'uuid="" time="0" transaction="0" flags="0" version="2" data_block_size="128" nr_data_blocks="9000"'
    return f"<superblock {head}>{devices}</superblock>"


class Pool(LocalHost):
    """A pool whose metadata is in a file. It keeps one copy, which only release_metadata_snap ends."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.copy = "-"
        self.opened = "2"

    def run(self, *argv: str, **more: Any) -> Result:
        if argv[:2] == ("dmsetup", "message"):
            reserves = argv[-1] == "reserve_metadata_snap"
            assert (self.copy == "-") == reserves, "the kernel refuses it"
            self.copy = "27" if reserves else "-"
            return Result(0, "", "")
        if argv[0] == "dmsetup":
            open_count = f"{self.opened}\n"
            return Result(0, open_count if argv[1] == "info" else f"0 1 thin-pool 1 1/2 1/2 {self.copy} rw\n", "")
        assert self.copy != "-", "the metadata changes while it is read"
        return super().run(*(one for one in argv if one != "--metadata-snap"), **more)

    # Activation

    @contextmanager
    def pool_active(self, _pool: str) -> Any:
        yield "pool-tpool"

    def device(self, name: str) -> Any:
        return SimpleNamespace(name=name)

    def path(self, _device: object) -> Path:
        return self.file


def pool_of(directory: Path, *volumes: Mapping_) -> tuple[Pool, ThinMetadata]:
    text, file = directory / "text", directory / "metadata"
    text.write_text(metadata_of(*volumes))
    with file.open("wb") as empty:
        empty.truncate(8 * 2**20)
    LocalHost().run("thin_restore", "-i", str(text), "-o", str(file))
    pool = Pool(file)
    return pool, ThinMetadata(pool, pool, "pool")  # type: ignore[arg-type]


def blocks(found: Any) -> list[int]:
    return [at // CHUNK for start, end in found for at in range(start, end, CHUNK)]


@needs_programs
@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_those_of_the_metadata(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    base = {at: chance.randrange(2000) * 2 for at in chance.sample(range(BLOCKS), 40)}
    target = {at: to if chance.random() < 0.7 else to + 1 for at, to in base.items() if chance.random() < 0.8}
    target |= {at: 4001 + 2 * at for at in chance.sample(range(BLOCKS, 2 * BLOCKS), 9)}
    pool, metadata = pool_of(tmp_path, base, target)

    assert blocks(metadata.allocated(2)) == sorted(target)
    assert blocks(metadata.changed(1, 2)) == sorted(
        at for at in base.keys() | target.keys() if base.get(at) != target.get(at)
    )
    assert pool.copy == "-"


@needs_programs
def test_a_volume_that_the_pool_does_not_have_is_an_error_and_the_copy_is_released(tmp_path: Path) -> None:
    pool, metadata = pool_of(tmp_path, {1: 1})
    with pytest.raises(Unavailable):
        metadata.changed(1, 7)

    assert pool.copy == "-"


@needs_programs
def test_a_copy_that_was_left_is_released_first_and_one_that_is_read_is_not(tmp_path: Path) -> None:
    pool, metadata = pool_of(tmp_path, {1: 1})
    pool.copy, pool.opened = "11", "3"
    with pytest.raises(Busy, match="another program reads"):
        metadata.allocated(1)
    assert pool.copy == "11"
    pool.opened = "2"

    assert blocks(metadata.allocated(1)) == [1]
    assert pool.copy == "-"


HEAD = '<superblock uuid="" time="1" transaction="1" data_block_size="128" nr_data_blocks="9">\n'


@pytest.mark.parametrize("end", ["", '  <different begin="5"'])
def test_a_map_that_is_cut_off_is_an_error_and_not_a_short_map(end: str) -> None:
    text = io.StringIO(HEAD + '<diff left="1" right="2">\n<left_only begin="3" length="2"/>\n' + end)
    found = ranges(text, CHANGED)

    assert next(found) == (3 * CHUNK, 5 * CHUNK)
    with pytest.raises(Unavailable, match="not complete"):
        next(found)


def test_what_is_the_same_in_both_is_left_out() -> None:
    text = io.StringIO(HEAD + '<same begin="0" length="9"/>\n<right_only begin="9" length="1"/>\n</superblock>\n')

    assert list(ranges(text, CHANGED)) == [(9 * CHUNK, 10 * CHUNK)]


def test_single_and_range_mappings_are_allocated() -> None:
    lines = (
        '<single_mapping origin_block="7" data_block="0" time="0"/>\n'
        '<range_mapping origin_begin="9" data_begin="0" length="3" time="0"/>\n</superblock>\n'
    )

    assert list(ranges(io.StringIO(HEAD + lines), ALLOCATED)) == [(7 * CHUNK, 8 * CHUNK), (9 * CHUNK, 12 * CHUNK)]
