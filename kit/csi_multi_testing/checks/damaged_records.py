"""A record that cannot be read: a file of the storage that lost its content in a power failure, or was edited."""

from __future__ import annotations

from csi_multi.contract import NotFound, Volume

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext
from ..operations.base import attempt, describe_error
from ..protocol import Target
from ..storage_contents import small_files


@check(needs=("files",), target=Target.BACKEND)
def a_volume_whose_record_cannot_be_read_is_not_taken_for_absent(t: CheckContext) -> None:
    """Its data may be whole. Nothing removes it, also not at the next start, and it is there when the record is."""
    before = small_files(t.storage.files)
    volume = t.volume()
    found = t.client.get(volume.handle)
    after = small_files(t.storage.files)
    records = {file: content for file, content in after.items() if before.get(file) != content and content}
    if not records:
        raise CheckSkipped("create_volume wrote no small file below Storage.files")

    for file, content in records.items():
        file.write_bytes(b"\0" * len(content))
        what = f"{file.name} was overwritten with zeros"
        _expect_not_absent(t, volume, what)
        attempt(t.client.restart)
        what = f"{what}, and the driver was started again"
        lost = sorted(str(one) for one in records if not one.exists())
        expect(not lost, f"{what}: it removed {lost}")
        _expect_not_absent(t, volume, what)
        file.write_bytes(content)
    same(t.client.get(volume.handle), found, "the records were overwritten with zeros and repaired, then get_volume")


def _expect_not_absent(t: CheckContext, volume: Volume, what: str) -> None:
    error = attempt(lambda: t.client.get(volume.handle))[1]
    problem = f"get_volume raised {describe_error(error)}" if isinstance(error, NotFound) else ""
    expect(not problem, f"{what}: {problem}; the contract requires another error, or the volume")
