"""Who may call a node, and whom the controller believes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.config.cluster import CONTROLLER_IDENTITY, NODE_IDENTITY, NODE_PLACEHOLDER
from csi_multi.host.command import LocalHost

Code = grpc.StatusCode


def ask(rig: Any, node: str, directory: Path | None, ca: Path | None = None) -> grpc.RpcError | None:
    """Call a node with the certificate in a directory (None: with none); return how it failed."""
    trusted = (ca or rig.authority.directory / "ca.pem").read_bytes()
    pair = [(directory / f"{part}.pem").read_bytes() for part in ("key", "certificate")] if directory else []
    options = (("grpc.ssl_target_name_override", NODE_IDENTITY.replace(NODE_PLACEHOLDER, node)),)
    credentials = grpc.ssl_channel_credentials(trusted, *pair)
    with grpc.secure_channel(f"127.0.0.1:{rig.machines[node].port}", credentials, options=options) as channel:
        list_volumes = channel.unary_unary("/csi.v1.Controller/ListVolumes")
        try:
            list_volumes(b"", timeout=10)
        except grpc.RpcError as error:
            return error
    return None


def test_the_controller_is_served(rig: Any) -> None:
    rig.start_node("node-1")

    assert ask(rig, "node-1", rig.authority.directory / "controller") is None


def test_another_node_is_refused_by_name(rig: Any) -> None:
    rig.start_node("node-1")

    error = ask(rig, "node-1", rig.authority.directory / "nodes" / "node-2")

    assert error is not None
    assert error.code() is Code.PERMISSION_DENIED
    assert "node-2.node.csi-multi" in (error.details() or "")
    assert CONTROLLER_IDENTITY in (error.details() or "")


def test_nobody_is_served_without_a_certificate(rig: Any) -> None:
    rig.start_node("node-1")

    assert ask(rig, "node-1", None).code() is Code.UNAVAILABLE


def test_a_certificate_of_another_authority_is_refused(rig: Any, tmp_path: Path) -> None:
    rig.start_node("node-1")
    foreign = CertificateAuthority(tmp_path / "other", LocalHost(), days=1).sign("controller", CONTROLLER_IDENTITY)

    assert ask(rig, "node-1", foreign).code() is Code.UNAVAILABLE


def expired(authority: CertificateAuthority, directory: Path) -> Path:
    """Make a certificate for the controller that was good until an hour ago: openssl makes none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    ca = x509.load_pem_x509_certificate((authority.directory / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((authority.directory / "ca.key").read_bytes(), None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(CONTROLLER_IDENTITY)])
    made = (
        x509.CertificateBuilder(ca.subject, x509.Name([]), key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=2))
        .not_valid_after(now - timedelta(hours=1))
        .add_extension(names, critical=True)
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    )
    (directory / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "key.pem").write_bytes(key.private_bytes(*form))
    return directory


def test_an_expired_certificate_is_refused(rig: Any, tmp_path: Path) -> None:
    rig.start_node("node-1")

    assert ask(rig, "node-1", expired(rig.authority, tmp_path)).code() is Code.UNAVAILABLE


def test_only_the_controller_services_are_there(rig: Any) -> None:
    rig.start_node("node-1")
    directory = rig.authority.directory
    pair = [(directory / "controller" / f"{part}.pem").read_bytes() for part in ("key", "certificate")]
    credentials = grpc.ssl_channel_credentials((directory / "ca.pem").read_bytes(), *pair)
    options = (("grpc.ssl_target_name_override", NODE_IDENTITY.replace(NODE_PLACEHOLDER, "node-1")),)
    with grpc.secure_channel(f"127.0.0.1:{rig.machines['node-1'].port}", credentials, options=options) as channel:
        for path in ("/csi.v1.Node/NodeGetInfo", "/csi.v1.Identity/Probe", "/csi.v1.Node/NodeUnstageVolume"):
            with pytest.raises(grpc.RpcError) as found:
                channel.unary_unary(path)(b"", timeout=10)
            assert found.value.code() is Code.UNIMPLEMENTED


def test_the_controller_sends_nothing_to_a_node_that_cannot_prove_its_name(rig: Any, refused: Any) -> None:
    rig.start_node("node-1", tls=rig.tls("nodes/node-2"))
    rig.start_controller()

    refusal = refused(rig.attempt, name="v", nodes=["node-1"])

    assert refusal.code is Code.UNAVAILABLE
    assert "ostname" in refusal.text
    assert rig.machines["node-1"].volumes == []


def test_a_controller_that_is_refused_says_so_and_nothing_final(rig: Any, refused: Any) -> None:
    rig.start_node("node-1", identity="another.csi-multi")
    rig.start_controller()

    refusal = refused(rig.attempt, name="v", nodes=["node-1"])

    assert refusal.code is Code.UNAVAILABLE, "with a final code the orchestrator would forget what it asked for"
    assert "'another.csi-multi'" in refusal.text


def test_one_certificate_may_do_for_all_nodes(rig: Any) -> None:
    rig.authority.sign("shared", "nodes.example.com")
    rig.start_node("node-1", tls=rig.tls("shared"))
    rig.start_controller(node_identity="nodes.example.com")

    assert rig.create("v", nodes=["node-1"])


def test_a_node_that_is_not_the_one_that_is_meant_does_nothing(rig: Any, refused: Any) -> None:
    """Its address was another node's before, and one certificate does for all."""
    rig.authority.sign("shared", "nodes.example.com")
    rig.start_node("node-2", tls=rig.tls("shared"))
    rig.machines["node-1"].port = rig.machines["node-2"].port
    rig.start_controller(node_identity="nodes.example.com")

    refusal = refused(rig.attempt, name="v", nodes=["node-1"])
    question = refused(rig.attempt, name="v")

    assert (refusal.code, question.code) == (Code.UNAVAILABLE, Code.UNAVAILABLE)
    assert "this is node 'node-2', but the RPC is for node 'node-1'" in refusal.text
    assert rig.machines["node-2"].volumes == []


@pytest.fixture
def own(rig: Any, tmp_path: Path) -> Any:
    """A rig with an authority of its own, so that certificates can be replaced."""
    rig.authority = CertificateAuthority(tmp_path / "own", LocalHost(), days=2)
    rig.authority.sign("controller", CONTROLLER_IDENTITY)
    rig.authority.sign("nodes/node-1", NODE_IDENTITY.replace(NODE_PLACEHOLDER, "node-1"))
    return rig


def test_certificates_are_read_again_when_they_change(own: Any, tmp_path: Path) -> None:
    own.start_node("node-1")
    own.start_controller()
    own.create("before", nodes=["node-1"])
    old = tmp_path / "old"
    (own.authority.directory / "controller").rename(old)
    for file in ("ca.pem", "ca.key"):
        (own.authority.directory / file).unlink()
    own.authority = CertificateAuthority(own.authority.directory, LocalHost(), days=2)
    own.authority.sign("controller", CONTROLLER_IDENTITY)
    own.authority.sign("nodes/node-1", NODE_IDENTITY.replace(NODE_PLACEHOLDER, "node-1"))

    assert own.create("after", nodes=["node-1"])
    own.stop_node("node-1")
    own.start_node("node-1")
    (own.authority.directory / "controller" / "ca.pem").touch()  # the same again: only the connection is new
    assert own.create("over a new connection", nodes=["node-1"])
    assert ask(own, "node-1", old).code() is Code.UNAVAILABLE, "its authority is not trusted any more"


def test_half_replaced_certificates_are_not_taken(own: Any, caplog: Any) -> None:
    own.start_node("node-1")
    own.start_controller()
    new = own.authority.sign("new", CONTROLLER_IDENTITY)
    (own.authority.directory / "controller" / "key.pem").write_bytes((new / "key.pem").read_bytes())

    assert own.create("v", nodes=["node-1"])
    assert "new certificates cannot be used" in caplog.text
    assert "BEGIN" not in caplog.text
    (own.authority.directory / "controller" / "certificate.pem").write_bytes((new / "certificate.pem").read_bytes())
    assert own.create("w", nodes=["node-1"])


def test_a_caller_that_has_gone_away_gets_nothing_begun(rig: Any) -> None:
    """A request that was late must not make what is made elsewhere by now."""
    from csi_multi.cluster.peer_auth import ControllerOnlyPolicy
    from csi_multi.contract.errors import Timeout

    class Gone:
        def is_active(self) -> bool:
            return False

    with pytest.raises(Timeout):
        ControllerOnlyPolicy("node-1", CONTROLLER_IDENTITY).check_caller(Gone())  # type: ignore[arg-type]
