"""lvm's refusals become the contract's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_lvm.client import Client
from csi_multi_lvm.config import Config
from csi_multi_lvm.errors import CommandRefused

from csi_multi.contract import FailedPrecondition, InUse, ResourceExhausted, Result, Unavailable


class RecordingHost:
    """A host on which every command has the same result, and that records the last command."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.argv: tuple[str, ...] = ()

    def run(self, *argv: str, ok: tuple[int, ...] = (0,), **_: Any) -> Result:
        assert ok == (0, 3, 5)
        self.argv = argv
        return self.result


Make = Callable[..., tuple[Client, RecordingHost]]


@pytest.fixture
def make() -> Make:
    def make(status: int = 0, stdout: str = "", stderr: str = "", **config: Any) -> tuple[Client, RecordingHost]:
        host = RecordingHost(Result(status, stdout, stderr))
        return Client(host, Config(volume_group="vg0", **config)), host

    return make


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('Volume group "vg0" has insufficient free space (3 extents): 16 required.', ResourceExhausted),
        ("Insufficient suitable allocatable extents for logical volume r6: 21 more required", ResourceExhausted),
        ("Cannot change VG vg0 while PVs are missing.", ResourceExhausted),
        ("Snapshot origin volumes can be resized only while inactive: try lvchange -an.", FailedPrecondition),
        ("Logical volume vg0/csi-a in use.", InUse),
        ("Logical volume vg0/csi-a contains a filesystem in use.", InUse),
        ("Can't get lock for vg0", Unavailable),
        ("", Unavailable),
    ],
)
def test_a_refusal_becomes_the_contracts_error(make: Make, text: str, kind: type[Exception]) -> None:
    client, _ = make(5, stderr=f"  WARNING: something else\n  {text}\n")
    with pytest.raises(CommandRefused) as refused:
        client.extend("csi-a", 7)
    assert type(refused.value.contract_error()) in (kind, CommandRefused if kind is Unavailable else kind)
    assert text in str(refused.value)
