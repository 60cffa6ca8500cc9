"""Options of mapping: whose they are, and which would undo what the driver promises."""

from __future__ import annotations

import pytest
from csi_multi_rbd.options import Options, merged, objection, parse

from csi_multi.contract import InvalidArgument


@pytest.mark.parametrize(
    ("text", "krbd", "nbd"),
    [
        ("", (), ()),
        ("noshare", ("noshare",), ()),
        ("krbd:ms_mode=secure,queue_depth=64", ("ms_mode=secure", "queue_depth=64"), ()),
        ("nbd:io-timeout=9", (), ("io-timeout=9",)),
        ("krbd:a,b=c;nbd:d", ("a", "b=c"), ("d",)),
        (" KRBD : a , b ; nbd:d;", ("a", "b"), ("d",)),
        ("krbd:crush_location=host:a|rack:b,a", ("crush_location=host:a|rack:b", "a"), ()),
        ("krbd:a;krbd:b", ("a", "b"), ()),
    ],
)
def test_options_belong_to_the_mounter_before_them(text: str, krbd: tuple[str, ...], nbd: tuple[str, ...]) -> None:
    assert parse(text) == Options(krbd=krbd, nbd=nbd)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fuse:a", "'fuse' is no mounter"),
        ("krbd:a b", "'a b' is no option"),
        ("krbd:=x", "'=x' is no option"),
        ("krbd:--exclusive", "is no option"),
        ("exclusive", "leave out 'exclusive'"),
        ("krbd:EXCLUSIVE", "leave out 'EXCLUSIVE'"),
        ("krbd:ro", "readOnly"),
        ("krbd:noudev", "the driver sees to it"),
        ("krbd:secret=AQ", "keys are"),
        ("krbd:force", "would be lost"),
        ("nbd:exclusive", "access mode"),
        ("nbd:device=/dev/nbd1", "the driver sees to it"),
        ("nbd:cookie=x", "the driver sees to it"),
        ("nbd:encryption-passphrase-file=/x", "does not encrypt"),
        ("nbd:quiesce-hook=/bin/sh", "run a program"),
    ],
)
def test_what_is_no_option_or_would_break_a_promise_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert reason in objection(text)
    with pytest.raises(InvalidArgument):
        parse(text)


def test_a_secret_is_not_repeated() -> None:
    assert "AQsecret" not in objection("krbd:secret=AQsecret")


def test_what_a_class_asks_for_replaces_the_drivers_own() -> None:
    assert merged(("a", "b=1"), ("b=2", "c")) == ("a", "b=2", "c")
