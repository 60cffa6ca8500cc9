"""Which devices of rbd-nbd show an image of the instance, and whether a process serves them."""

from __future__ import annotations

from pathlib import Path

import pytest
from csi_multi_rbd import nbd

from .fake_node import FSID, FakeKernel, config


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def cookie(image: str = "v", image_id: str = "abc", *, exclusive: bool = True, **values: object) -> str:
    return str(nbd.cookie(config(**values), image, image_id, exclusive=exclusive))


def test_a_mapping_is_found_and_its_cookie_is_its_proof(kernel: FakeKernel) -> None:
    disk = kernel.nbd(cookie())

    ((image, found),) = nbd.find(kernel, config(), "v")
    assert image == "v"
    assert (found.kind, found.disk, found.number, found.image_id) == ("nbd", disk, "43:0", "abc")
    assert found.proof == {"backend": f"{FSID}/k8s//v/abc/exclusive"}
    assert found.exclusive
    assert found.served


def test_a_shared_one_says_so(kernel: FakeKernel) -> None:
    kernel.nbd(cookie(exclusive=False))
    ((_, found),) = nbd.find(kernel, config(), "v")
    assert not found.exclusive


@pytest.mark.parametrize(
    "other",
    [
        cookie("v2"),
        cookie(pool="other"),
        cookie(namespace="team"),
        cookie(fsid="99999999-2222-3333-4444-555555555555"),
        "",
        "0001-0024-ceph-csi-volume",
        f"{FSID}/k8s//v/abc/often",
        f"{FSID}/k8s//v/abc",
    ],
)
def test_what_was_made_for_something_else_is_not_ours(kernel: FakeKernel, other: str) -> None:
    kernel.nbd(other)
    assert list(nbd.find(kernel, config(), "v")) == []


def test_a_device_that_nothing_is_mapped_on_is_none(kernel: FakeKernel) -> None:
    disk = kernel.nbd(cookie())
    (kernel.sys / "block" / disk / "backend").unlink()
    assert list(nbd.find(kernel, config(), "v")) == []


def test_all_are_found_without_a_name(kernel: FakeKernel) -> None:
    for image in ("a", "b"):
        kernel.nbd(cookie(image))
    assert [image for image, _ in nbd.find(kernel, config())] == ["a", "b"]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes of the node are in sight."""
    monkeypatch.setattr(nbd, "sees_processes", lambda _: True)


def served(kernel: FakeKernel) -> bool:
    ((_, found),) = nbd.find(kernel, config(), "v")
    return found.served


def test_a_device_whose_process_is_gone_is_not_served(kernel: FakeKernel, whole: None) -> None:
    kernel.nbd(cookie(), pid=500)
    assert served(kernel)
    kernel.end(500)
    assert not served(kernel)


def test_another_program_that_has_the_number_by_now_serves_nothing(kernel: FakeKernel, whole: None) -> None:
    kernel.nbd(cookie(), pid=500)
    kernel.end(500)
    kernel.process(500, "nginx")
    assert not served(kernel)


def test_a_process_that_has_ended_and_is_not_buried_serves_nothing(kernel: FakeKernel, whole: None) -> None:
    kernel.nbd(cookie(), pid=500)
    (kernel.proc / "500" / "cmdline").write_text("")
    assert not served(kernel)


def test_a_second_process_serves_the_device_that_it_was_started_for(kernel: FakeKernel, whole: None) -> None:
    """sysfs goes on showing the number of the first."""
    disk = kernel.nbd(cookie(), pid=500)
    kernel.end(500)
    kernel.process(600, "rbd-nbd", "attach", "k8s/v", "--device", f"{kernel.dev / disk}0")
    assert not served(kernel)
    kernel.process(601, "rbd-nbd", "attach", "k8s/v", "--device", str(kernel.dev / disk))
    assert served(kernel)


def test_a_container_without_the_nodes_processes_is_told_by_its_namespace(kernel: FakeKernel, tmp_path: Path) -> None:
    """And does not take what is out of sight for dead."""
    kernel.nbd(cookie(), pid=500)
    kernel.end(500)
    assert served(kernel)
    assert not nbd.sees_processes(kernel)
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "ns" / "pid").touch()
    assert not nbd.sees_processes(kernel)
