"""The driver of the rbd benchmarks counts commands by their verb; nothing is measured here."""

from __future__ import annotations

import pytest

from bench.rbd_driver import verb


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["rbd", "--id", "csi", "create", "--size", "1M", "pool/image"], "create"),
        (["rbd", "--id", "csi", "image-meta", "set", "pool/image", "key", "value"], "image-meta set"),
        (["ceph", "--id", "csi", "osd", "blocklist", "ls"], "ceph osd blocklist"),
        (["ceph", "--id", "csi"], "ceph"),
    ],
)
def test_a_command_is_counted_by_its_verb(argv: list[str], shown: str) -> None:
    assert verb(argv) == shown
