"""Nodes with SELinux, and nodes without: mounts with a context, and sidecars that reach the driver's socket."""

from __future__ import annotations

from collections.abc import Callable

from .conftest import Object, Release


def mounts(release: Release) -> dict[str, Object]:
    return {one["mountPath"]: one for one in release.containers("DaemonSet")["driver"]["volumeMounts"]}


def test_the_driver_sees_whether_the_host_has_selinux_wherever_the_kubelet_counts_on_contexts(release: Release) -> None:
    """mount(8) leaves the context out, and says nothing, without /sys/fs/selinux or /etc/selinux."""
    counted_on = release.one("CSIDriver")["spec"]["seLinuxMount"]
    rbd = "rbd" in {backend["kind"] for backend in release.config["backends"].values()}

    assert ("/etc/selinux" in mounts(release)) == counted_on
    assert ("/sys" in mounts(release)) == (counted_on or rbd)


def test_what_shows_that_the_host_has_selinux_is_there_for_every_backend(rendered: Callable[..., Release]) -> None:
    config = "driver: {name: multi.csi.example.com}\nbackends: {cloud: {kind: ebs, region: eu-west-1}}\n"

    assert {"/sys", "/etc/selinux"} <= set(mounts(rendered(config, csiDriver={"seLinuxMount": True})))


def test_the_hosts_selinux_is_not_changed(whole: Release) -> None:
    assert mounts(whole)["/etc/selinux"]["readOnly"] is True
    assert "readOnly" not in mounts(whole)["/sys"]  # rw, or libselinux takes it for switched off


def test_nothing_of_selinux_is_asked_of_nodes_that_may_not_have_it(release: Release) -> None:
    if release.values.stem == "every-switch":
        return
    containers = release.containers("DaemonSet").values()

    assert release.one("CSIDriver")["spec"]["seLinuxMount"] is False
    assert not [one["name"] for one in containers if "seLinuxOptions" in one["securityContext"]]


def test_sidecars_get_the_label_that_the_values_say_and_the_driver_keeps_its_own(whole: Release) -> None:
    labels = {name: one["securityContext"].get("seLinuxOptions") for name, one in whole.containers("DaemonSet").items()}

    assert labels == {"driver": None, "registrar": {"type": "spc_t"}, "livenessprobe": {"type": "spc_t"}}
