"""The module that knows lvm's text: which exit status means what, and what a report says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_lvm.config import Config
from csi_multi_lvm.lvm import Lvm, Refused

from csi_multi.contract import FailedPrecondition, InUse, ResourceExhausted, Result, Unavailable


class Answers:
    """A host that gives one answer to every command, and remembers the words of the last."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.argv: tuple[str, ...] = ()

    def run(self, *argv: str, ok: tuple[int, ...] = (0,), **_: Any) -> Result:
        assert ok == (0, 3, 5)
        self.argv = argv
        return self.result


Make = Callable[..., tuple[Lvm, Answers]]


@pytest.fixture
def make() -> Make:
    def make(status: int = 0, stdout: str = "", stderr: str = "", **config: Any) -> tuple[Lvm, Answers]:
        host = Answers(Result(status, stdout, stderr))
        return Lvm(host, Config(volume_group="vg0", **config)), host

    return make


@pytest.mark.parametrize(
    ("said", "kind"),
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
def test_what_was_refused_says_which_error_it_is(make: Make, said: str, kind: type[Exception]) -> None:
    lvm, _ = make(5, stderr=f"  WARNING: something else\n  {said}\n")
    with pytest.raises(Refused) as refused:
        lvm.extend("csi-a", 7)
    assert type(refused.value.narrowed()) in (kind, Refused if kind is Unavailable else kind)
    assert said in str(refused.value)


def test_a_report_that_failed_never_means_absent(make: Make) -> None:
    lvm, _ = make(5, stderr='  Volume group "vg0" not found\n')
    with pytest.raises(Unavailable, match="not found"):
        lvm.look("csi-a")
    with pytest.raises(Unavailable, match="not found"):
        lvm.report()


@pytest.mark.parametrize("stdout", ["", "{", '{"report": 1}', '{"report": [{"lv": [{"lv_size": "1"}]}]}'])
def test_a_report_that_cannot_be_read_never_means_absent(make: Make, stdout: str) -> None:
    lvm, _ = make(stdout=stdout)
    with pytest.raises(Unavailable):
        lvm.look("csi-a")


def test_an_empty_report_that_succeeded_means_absent(make: Make) -> None:
    lvm, _ = make(stdout=json.dumps({"report": [{"lv": []}]}))
    assert lvm.look("csi-a") == {}


def test_a_report_without_the_group_is_no_answer(make: Make) -> None:
    lvm, _ = make(stdout=json.dumps({"report": [{"vg": [], "pv": [], "lv": []}]}))
    with pytest.raises(Unavailable, match="nothing about volume group vg0"):
        lvm.report()


def test_the_device_is_known_by_the_uuids_of_group_and_volume(make: Make) -> None:
    row = {"vg_uuid": "AB-C", "lv_uuid": "D-EF", "lv_name": "csi-a", "lv_size": "4194304", "lv_active": "active"}
    lvm, _ = make(stdout=json.dumps({"report": [{"lv": [row]}]}))
    found = lvm.look("csi-a")["csi-a"]
    assert (found.uuid, found.size, found.active, found.open) == ("LVM-ABCDEF", 4194304, True, False)


def test_in_the_hosts_namespaces_the_hosts_own_settings_count(make: Make) -> None:
    lvm, host = make(namespace="host")
    lvm.activate("csi-a")
    assert host.argv == (
        *("nsenter", "--target", "1", "--mount", "--ipc", "--"),
        *("lvm", "lvchange", "-ay", "-K", "vg0/csi-a"),
    )


def test_in_its_own_namespaces_lvm_starts_no_daemon_and_waits_for_no_udev(make: Make) -> None:
    lvm, host = make(udev="no")
    lvm.activate("csi-a")
    settings = host.argv[host.argv.index("--config") + 1]
    assert settings == "activation/monitoring=0 activation/udev_sync=0 activation/udev_rules=0"
