"""The certificates, tokens and kubeconfigs of a cluster that lives as long as a test run."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path

SERVER = "https://10.10.0.1:6443"
NAMES = (
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,"
    "IP:127.0.0.1,IP:10.96.0.1,IP:10.10.0.1"
)


class Credentials:
    """In a directory: ca.crt, apiserver.crt, kubelet-client.crt, sa.key, sa.pub, tokens.csv, NAME.conf."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def make(self, nodes: list[str]) -> None:
        self.directory.mkdir(mode=0o700, parents=True)
        key = ("-newkey", "rsa:2048", "-noenc")
        self._openssl("req", "-x509", *key, "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.crt", "-days", "30")
        self._sign("apiserver", "/CN=kube-apiserver", f"subjectAltName={NAMES}")
        self._sign("kubelet-client", "/O=system:masters/CN=kube-apiserver", "extendedKeyUsage=clientAuth")
        self._openssl("genrsa", "-out", "sa.key", "2048")
        self._openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
        users = {
            "admin": ("admin", "system:masters"),
            "controller-manager": ("system:kube-controller-manager", ""),
            "scheduler": ("system:kube-scheduler", ""),
            **{f"kubelet-{node}": (f"system:node:{node}", "system:nodes") for node in nodes},
            **{f"proxy-{node}": ("system:kube-proxy", "") for node in nodes},
        }
        lines = [self._user(name, user, group) for name, (user, group) in users.items()]
        (self.directory / "tokens.csv").write_text("\n".join(lines) + "\n")

    def kubeconfig(self, name: str) -> Path:
        return self.directory / f"{name}.conf"

    def _user(self, name: str, user: str, group: str) -> str:
        """Write a user's kubeconfig; return the line of the token file."""
        token = secrets.token_hex(16)
        cluster = {"server": SERVER, "certificate-authority": str(self.directory / "ca.crt")}
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token}}],
        }
        self.kubeconfig(name).write_text(json.dumps(text))
        return f'{token},{user},{user},"{group}"'

    def _sign(self, name: str, subject: str, extension: str) -> None:
        request = ("req", "-newkey", "rsa:2048", "-noenc", "-subj", subject)
        self._openssl(*request, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (self.directory / f"{name}.ext").write_text(extension + "\n")
        signed = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
        self._openssl(*signed, "-days", "30", "-out", f"{name}.crt", "-extfile", f"{name}.ext")

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.directory, capture_output=True, check=True)
