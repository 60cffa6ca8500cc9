"""A command that crashes at its end is run again, and does not open the circuit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from csi_multi_rbd.client import Client, ClusterClient
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import Config
from csi_multi_rbd.errors import CephCommandFailed

from csi_multi.contract import Observer, PermissionDenied, Result, Unavailable
from csi_multi.contract.observer import EndCallback, Rpc

FSID = "01234567-89ab-cdef-0123-456789abcdef"
CRASH = Result(-6, "", "terminate called after throwing an instance of 'std::system_error'")


class Scripted(CommandRunner):
    def __init__(self, *answers: Result) -> None:
        self.answers = [*answers]

    def execute(self, program: str, *words: str, timeout: float, **more: Any) -> Result:
        return self.answers.pop(0)


def rbd(runner: CommandRunner) -> Client:
    return Client(Config(monitors=("10.0.0.1",), fsid=FSID, pool="k8s", user="csi", keyring="/keyring"), runner)


def test_a_command_that_crashed_is_run_again() -> None:
    runner = Scripted(CRASH, Result(0, '["image"]', ""))

    assert rbd(runner).image_names() == ["image"]
    assert runner.answers == []


def test_a_command_that_crashes_always_is_no_final_failure() -> None:
    with pytest.raises(Unavailable, match="status -6"):
        rbd(Scripted(CRASH, CRASH)).image_names()


class Told:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def begin_rpc(self, rpc: Rpc) -> EndCallback:
        raise AssertionError("a backend tells of no RPC")

    def begin_call(self, instance: str, program: str, operation: str) -> EndCallback:
        return lambda outcome: self.calls.append((instance, program, operation, outcome))


def test_a_command_is_told_once_by_its_verb_alone_with_what_became_of_it() -> None:
    runner, told = Scripted(CRASH, Result(0, '["image"]', ""), CRASH, CRASH), Told()
    runner.observe = Observer("ceph-a", (told,))
    rbd(runner).image_names()
    with pytest.raises(Unavailable):
        rbd(runner).connection.rbd("snap", "create", "pool/image@secret")

    assert told.calls == [("ceph-a", "rbd", "ls", "ok"), ("ceph-a", "rbd", "snap create", "Unavailable")]


def cluster(stdout: str, stderr: str = "") -> ClusterClient:
    config = Config(monitors=("10.0.0.1",), fsid=FSID, pool="k8s", user="csi", keyring="/keyring")
    return ClusterClient(config, Scripted(Result(0, stdout, stderr)))


STATUS = json.dumps({"fsid": FSID, "health": {"status": "HEALTH_OK", "checks": {}}})
USAGE = json.dumps({"pools": [{"name": "k8s", "stats": {"max_avail": 5, "stored": 0}}]}, indent=1)


def test_the_answers_to_several_questions_follow_each_other() -> None:
    status, usages = cluster(f"\n{STATUS}\n\n{USAGE}\n\n").report()

    assert (status.fsid, usages["k8s"].max_avail) == (FSID, 5)


@pytest.mark.parametrize(
    ("stderr", "raised"),
    [("Error EACCES: access denied\n", PermissionDenied), ("Error EINVAL: invalid command\n", CephCommandFailed)],
)
def test_of_several_questions_the_one_that_fails_decides(stderr: str, raised: type[Exception]) -> None:
    for stdout in ("", STATUS, USAGE):
        with pytest.raises(raised, match=stderr.split(": ")[1].strip()):
            cluster(stdout, stderr).report()


@pytest.mark.parametrize("stdout", ["", STATUS, f"{STATUS}\n{USAGE[:-1]}", f"{USAGE}\n{STATUS}", "Status: none"])
def test_answers_that_are_not_understood_are_no_report(stdout: str) -> None:
    with pytest.raises(CephCommandFailed):
        cluster(stdout).report()
