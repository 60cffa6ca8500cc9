"""`csi-multi certificates`: a certificate authority (CA) and the certificates that it signs for a cluster.

For tests and small clusters; another CA (cert-manager, Vault) signs the same two DNS names. The `openssl` command
does the work, because no other part of the driver needs a library for it (cryptography: 5 MiB, 40 ms).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from ..config.cluster import CONTROLLER_IDENTITY, DNS_NAME, NODE_PLACEHOLDER
from ..contract.errors import StorageError
from ..contract.ids import NODE as NODE_NAME
from ..contract.machine import Host
from ..host.command import LocalHost

EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
CA_DAYS = 3650
CA_EXTENSIONS = (
    "-addext",
    "basicConstraints=critical,CA:TRUE,pathlen:0",
    "-addext",
    "keyUsage=critical,keyCertSign,cRLSign",
)
LEAF_EXTENSIONS = (
    *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=critical,digitalSignature"),
    *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
)


class UsageError(Exception):
    """The options are wrong; the text says why."""


def certificates(options: argparse.Namespace) -> int:
    """Create the CA and the controller's certificate unless they exist, and the certificates of the given nodes."""
    try:
        nodes = dict(_parse_node(text) for text in options.node)
        identities = {name: options.node_identity.replace(NODE_PLACEHOLDER, name) for name in nodes}
        for identity in (options.controller_identity, *identities.values()):
            if not DNS_NAME.fullmatch(identity):
                raise UsageError(f"{identity!r} is not a DNS name such as {CONTROLLER_IDENTITY}")
        authority = CertificateAuthority(options.directory, LocalHost(), options.days)
        if not (options.directory / "controller" / "key.pem").exists():
            authority.sign("controller", options.controller_identity)
        for name in nodes:
            authority.sign(f"nodes/{name}", identities[name])
    except (UsageError, StorageError, OSError) as error:
        print(f"csi-multi certificates: {error}", file=sys.stderr)
        return 2
    print(_config_snippet(options.directory, nodes))
    return 0


class CertificateAuthority:
    """A CA in a directory: ca.pem, and ca.key, which no driver needs."""

    def __init__(self, directory: Path, host: Host, days: int) -> None:
        """Create the CA unless it exists."""
        self.directory, self._host, self._days = directory, host, days
        self._ca, self._key = directory / "ca.pem", directory / "ca.key"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._ca.exists() and self._key.exists():
            return
        if self._ca.exists() or self._key.exists():
            raise UsageError(
                f"{directory} has only one of ca.pem and ca.key; restore the other one or choose another directory"
            )
        key, certificate = directory / "ca.key.new", directory / "ca.pem.new"
        self._request(key, certificate, "csi-multi CA", CA_DAYS, *CA_EXTENSIONS)
        key.replace(self._key)
        certificate.replace(self._ca)

    def sign(self, subdirectory: str, identity: str, days: int | None = None) -> Path:
        """Create key.pem, certificate.pem and ca.pem in a subdirectory; return it."""
        directory = self.directory / subdirectory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key, certificate = directory / "key.pem.new", directory / "certificate.pem.new"
        signing = ("-CA", str(self._ca), "-CAkey", str(self._key), "-addext", f"subjectAltName=DNS:{identity}")
        self._request(key, certificate, identity, self._days if days is None else days, *signing, *LEAF_EXTENSIONS)
        shutil.copyfile(self._ca, directory / "ca.pem")
        for file in (key, certificate):
            file.replace(file.with_suffix(""))
        return directory

    def _request(self, key: Path, certificate: Path, subject: str, days: int, *more: str) -> None:
        """Create a key, which openssl makes readable for its owner only, and a certificate for it."""
        files = ("-keyout", str(key), "-out", str(certificate))
        name = ("-subj", f"/CN={subject[:64]}", "-days", str(days))  # the limit of X.509 for common names
        self._host.run("openssl", "req", "-x509", *EC_KEY, *files, *name, *more)


def _parse_node(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    if not NODE_NAME.fullmatch(name):
        raise UsageError(f"--node {text}: {name!r} is not a valid node name: 1 to 63 letters, digits or '-_.'")
    return name, address


def _config_snippet(directory: Path, nodes: dict[str, str]) -> str:
    """Return the section `cluster:` for the configuration file."""
    lines = [f"{directory}: ca.pem, controller/" + "".join(f", nodes/{name}/" for name in nodes), "cluster:"]
    lines += ["  tls: {ca: DIR/ca.pem, certificate: DIR/certificate.pem, key: DIR/key.pem}"]
    if nodes:
        entries = ", ".join(f"{name}: {address or 'HOST:9810'}" for name, address in nodes.items())
        lines += [f"  nodes: {{{entries}}}"]
    lines += ["Keep ca.key off all nodes: whoever has it can act as the controller."]
    return "\n".join(lines)
