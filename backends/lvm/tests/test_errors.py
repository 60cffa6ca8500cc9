"""lvm's refusals become the contract's errors."""

from __future__ import annotations

import pytest
from csi_multi_lvm.errors import CommandRefused

from csi_multi.contract import FailedPrecondition, InUse, ResourceExhausted, Unavailable

from .recording import client_with


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
def test_a_refusal_becomes_the_contracts_error(text: str, kind: type[Exception]) -> None:
    client, _ = client_with(5, stderr=f"  WARNING: something else\n  {text}\n")
    with pytest.raises(CommandRefused) as refused:
        client.extend("csi-a", 7)
    assert type(refused.value.contract_error()) in (kind, CommandRefused if kind is Unavailable else kind)
    assert text in str(refused.value)
