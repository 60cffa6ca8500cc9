"""A process of a cluster starts with its certificates, its port, and the work of its mode; or with a named error."""

from __future__ import annotations

from typing import Any

import pytest

from csi_multi.cluster.bootstrap import ClusterMembership
from csi_multi.config.document import ConfigError
from csi_multi.loading.registry import Registry
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.endpoint import EndpointError
from csi_multi.rpc.interceptor import SharedRpcState
from tests.cluster_section import TLS


def test_certificates_that_are_not_there_are_named(load: Any) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.tls: /tls/ca\.pem cannot be read: No such file"):
        ClusterMembership(load(TLS + "  nodes: {node-1: 10.0.0.1:1}\n"), Mode.CONTROLLER)


def test_certificates_that_do_not_fit_together_are_named(load: Any, authority: Any) -> None:
    place = authority.directory
    lines = f"  tls: {{ca: {place}/ca.pem, certificate: {place}/controller/certificate.pem, key: {place}/ca.key}}\n"

    with pytest.raises(ConfigError, match="are not valid PEM files that belong together: key values mismatch"):
        ClusterMembership(load(lines + "  nodes: {node-1: 10.0.0.1:1}\n"), Mode.CONTROLLER)


def test_a_node_needs_a_port_that_the_controller_can_reach(load: Any) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.listen is required in mode node"):
        ClusterMembership(load(TLS + "  nodes: {node-1: 10.0.0.1:1}\n"), Mode.NODE)


@pytest.mark.parametrize(("mode", "local"), [(Mode.ALL, None), (Mode.CONTROLLER, False), (Mode.NODE, True)])
def test_who_does_the_work_of_node_local_backends_follows_from_the_mode(
    load: Any, authority: Any, mode: Mode, local: bool | None
) -> None:
    place = authority.directory / "controller"
    tls = f"  tls: {{ca: {place}/ca.pem, certificate: {place}/certificate.pem, key: {place}/key.pem}}\n"

    assert ClusterMembership(load(tls + "  listen: 127.0.0.1:1\n  nodes: {node-1: 10.0.0.1:1}\n"), mode).local is local


def test_a_port_that_is_taken_is_named(load: Any, rig: Any) -> None:
    rig.start_node("node-1")
    place = rig.authority.directory / "nodes" / "node-1"
    tls = f"  tls: {{ca: {place}/ca.pem, certificate: {place}/certificate.pem, key: {place}/key.pem}}\n"
    role = ClusterMembership(load(tls + f"  listen: 127.0.0.1:{rig.machines['node-1'].port}\n"), Mode.NODE)

    with pytest.raises(EndpointError, match=f"127.0.0.1:{rig.machines['node-1'].port}"):
        role.start(Registry([]), SharedRpcState(8))
