"""`csi-multi explain` shows the commands that a creation runs, and changes nothing in the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import Config
from csi_multi_rbd.explain import PURPOSES, DryRunRunner, readable_command, verb

from csi_multi.contract import (
    DryRunReport,
    NotFound,
    ResourceExhausted,
    Result,
    Setting,
    Source,
    SourceKind,
    Unavailable,
    Unpredictable,
    VolumeRequest,
)

from . import volumes
from .ceph_commands import Commands
from .volumes import MIB, SIZE

Make = Callable[[Any, VolumeRequest], Any]
FSID = "0b9d4c1e-83f7-4f0a-b1de-6c27f5a9d3e4"


class Recorder(CommandRunner):
    """Runs real commands, and remembers those that change something."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[str, ...]] = []

    def execute(self, program: str, *words: str, timeout: float, **more: Any) -> Result:
        purpose = PURPOSES.get(verb(program, words))
        if purpose is None or not purpose.read_only:
            self.changes.append(readable_command(program, words))
        return super().execute(program, *words, timeout=timeout, **more)


def make(backend: Any, request: VolumeRequest) -> Any:
    if request.source is None:
        return backend.create_volume(request)
    return (backend.restore_volume if request.source.kind is SourceKind.SNAPSHOT else backend.clone_volume)(request)


def changes(report: DryRunReport) -> list[tuple[str, ...]]:
    return [step.words for step in report.steps if step.changes]


@pytest.fixture
def wishes(backend: RbdBackend) -> dict[str, VolumeRequest]:
    """A request of every kind; what they are copied from is there."""
    source = volumes.create(backend, "source")
    cut = volumes.snapshot(backend, "snapshot", source)

    def copied(kind: SourceKind, handle: str, size: int = 0) -> VolumeRequest:
        stamp = volumes.stamp(backend, "pvc-1", Source(kind=kind, handle=handle))
        return replace(volumes.volume_request(backend, "pvc-1", size), stamp=stamp)

    return {
        "create": volumes.volume_request(backend, "pvc-1", SIZE + 1, object_size=8 * MIB),
        "restore": copied(SourceKind.SNAPSHOT, cut.handle),
        "restore larger": copied(SourceKind.SNAPSHOT, cut.handle, 2 * SIZE),
        "clone": copied(SourceKind.VOLUME, source.handle),
    }


@pytest.mark.parametrize("kind", ["create", "restore", "restore larger", "clone"])
def test_the_commands_that_are_told_are_those_of_a_creation(
    backend: RbdBackend,
    config: Config,
    setting: Setting,
    cluster: Commands,
    namespace: str,
    wishes: dict[str, VolumeRequest],
    kind: str,
) -> None:
    before, report, runner = cluster.everything(namespace), DryRunReport(), Recorder()

    dry_run = backend.dry_run(report)
    expected = make(dry_run, wishes[kind])
    dry_run.close()
    assert cluster.everything(namespace) == before

    real = RbdBackend(config, setting, runner)
    made = make(real, wishes[kind])
    real.close()
    assert changes(report) == runner.changes
    assert made == expected


def test_a_pool_without_room_refuses_it(backend: RbdBackend) -> None:
    with pytest.raises(ResourceExhausted, match="requested; add disks"):
        backend.dry_run(DryRunReport()).create_volume(volumes.volume_request(backend, "pvc-1", 2**60))


def test_a_source_that_is_not_there_is_told_as_such(backend: RbdBackend) -> None:
    source = Source(kind=SourceKind.VOLUME, handle="nothing")
    volume_request = replace(volumes.volume_request(backend, "pvc-1"), stamp=volumes.stamp(backend, "pvc-1", source))

    with pytest.raises(NotFound):
        backend.dry_run(DryRunReport()).clone_volume(volume_request)


def away(keyring: str = "/etc/ceph/keyring") -> RbdBackend:
    config = Config(monitors=("127.0.0.1:1",), fsid=FSID, pool="k8s", user="csi", keyring=keyring)
    return RbdBackend(config, Setting(instance="ceph", driver="d", cluster="c", node="n", host=None))  # type: ignore[arg-type]


def test_without_the_cluster_the_command_is_told_and_what_it_goes_by() -> None:
    report, backend = DryRunReport(offline=True), away()

    made = backend.dry_run(report).create_volume(volumes.volume_request(backend, "pvc-1", 32 * MIB + 1))

    (command,) = changes(report)
    assert made.size == 33 * MIB
    assert command[:1] == ("rbd",)
    assert "import" in command
    assert any(f"empty image of {33 * MIB} bytes" in word and '"name":"pvc-1"' in word for word in command)
    assert report.assumed == ["the pool exists and has enough space"]


def test_a_key_that_comes_with_requests_is_neither_asked_for_nor_shown() -> None:
    report, backend = DryRunReport(offline=True), away(keyring="")

    backend.dry_run(report).create_volume(volumes.volume_request(backend, "pvc-1"))

    (command,) = changes(report)
    assert "(the key in the request's secrets)" in command
    assert "USER-OF-THE-SECRET" in command
    with pytest.raises(Unavailable, match="secrets"):
        backend.dry_run(DryRunReport()).create_volume(volumes.volume_request(backend, "pvc-1"))


def test_without_the_cluster_a_copy_cannot_be_told() -> None:
    backend = away()
    source = Source(kind=SourceKind.VOLUME, handle="source")
    volume_request = replace(volumes.volume_request(backend, "pvc-1"), stamp=volumes.stamp(backend, "pvc-1", source))

    with pytest.raises(Unpredictable, match="not known"):
        backend.dry_run(DryRunReport(offline=True)).clone_volume(volume_request)


def test_a_command_that_is_no_part_of_a_creation_is_not_run() -> None:
    dry_run = away().dry_run(DryRunReport())
    assert isinstance(dry_run.main.client.connection.runner, DryRunRunner)

    for words in (("rm", "k8s/a"), ("trash", "purge"), ("snap", "purge", "k8s/a"), ("image-meta", "get", "a", "b")):
        with pytest.raises(Unpredictable):
            dry_run.main.client.connection.rbd(*words)


def test_looks_are_only_those_that_look() -> None:
    looks = {name for name, purpose in PURPOSES.items() if purpose.read_only}
    writing = ("import", "clone", "create", "rm", "resize", "set", "flatten", "mv", "add")

    assert not any(word in name.split() for name in looks for word in writing)
