"""The port for metrics over TLS: its certificate is replaced while it runs, and no client holds it up."""

from __future__ import annotations

import shutil
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError

import pytest

from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.config.document import ConfigError
from csi_multi.config.settings import load_config
from csi_multi.host.command import LocalHost
from csi_multi.rpc.endpoint import EndpointError
from csi_multi.telemetry import http as pages
from csi_multi.telemetry.http import CertificateFiles, MetricsServer

from .test_http import show

CONFIG = "driver: {{name: multi.csi.example.com, {driver}}}\nbackends: {{fast: {{kind: mem}}}}\n"
Fetch = Callable[[MetricsServer, Path], bytes]


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Directories with the certificate of a CA, and one for localhost with its key."""
    directory = tmp_path_factory.mktemp("authorities")
    return [CertificateAuthority(directory / name, LocalHost(), 1).sign("metrics", "localhost") for name in ("a", "b")]


@pytest.fixture
def files(authorities: list[Path], tmp_path: Path) -> CertificateFiles:
    install(authorities[0], tmp_path)
    return CertificateFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))


@pytest.fixture
def page(files: CertificateFiles) -> Iterator[MetricsServer]:
    made = MetricsServer("127.0.0.1:0", show, files)
    yield made
    made.close()


def install(authority: Path, directory: Path) -> None:
    shutil.copy(authority / "certificate.pem", directory / "tls.crt")
    shutil.copy(authority / "key.pem", directory / "tls.key")


def fetch(page: MetricsServer, authority: Path) -> bytes:
    context = ssl.create_default_context(cafile=str(authority / "ca.pem"))
    url = f"https://localhost:{page.address.rpartition(':')[2]}/metrics"
    with urllib.request.urlopen(url, timeout=20, context=context) as answer:
        text: bytes = answer.read()
        return text


def test_who_trusts_the_ca_reads_the_metrics(page: MetricsServer, authorities: list[Path]) -> None:
    assert fetch(page, authorities[0]) == b"metric 1\n"


def test_a_replaced_certificate_is_used_from_the_next_connection_on(
    page: MetricsServer, authorities: list[Path], tmp_path: Path
) -> None:
    fetch(page, authorities[0])
    install(authorities[1], tmp_path)

    assert fetch(page, authorities[1]) == b"metric 1\n"


def test_while_a_certificate_is_replaced_the_port_stays(
    page: MetricsServer, authorities: list[Path], tmp_path: Path
) -> None:
    shutil.copy(authorities[1] / "certificate.pem", tmp_path / "tls.crt")  # the key is still the other one's
    with pytest.raises(URLError):
        fetch(page, authorities[1])
    install(authorities[1], tmp_path)

    assert fetch(page, authorities[1]) == b"metric 1\n"


def test_without_tls_nothing_is_told(page: MetricsServer) -> None:
    host, _, port = page.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as plain:
        plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"metric" not in plain.makefile("rb").read()


def test_clients_that_say_nothing_do_not_keep_the_port_from_others(
    page: MetricsServer, authorities: list[Path]
) -> None:
    host, _, port = page.address.rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(pages.MAX_REQUESTS + 2)]
    try:
        assert fetch(page, authorities[0]) == b"metric 1\n"
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
def test_a_file_that_cannot_be_used_stops_the_start(files: CertificateFiles, tmp_path: Path, missing: str) -> None:
    (tmp_path / missing).write_text("no PEM")

    with pytest.raises(EndpointError, match=r"driver\.metrics_certificate: .*tls\.crt and .*tls\.key cannot be used"):
        MetricsServer("127.0.0.1:0", show, files)


@pytest.mark.parametrize(
    "driver",
    [
        "metrics: '127.0.0.1:0', metrics_certificate: tls.crt",
        "metrics: '127.0.0.1:0', metrics_key: tls.key",
        "metrics_certificate: tls.crt, metrics_key: tls.key",
    ],
)
def test_a_certificate_needs_its_key_and_a_port(driver: str, tmp_path: Path) -> None:
    (tmp_path / "csi.yaml").write_text(CONFIG.format(driver=driver))

    with pytest.raises(ConfigError, match=r"metrics_certificate.*metrics_key.*metrics"):
        load_config(tmp_path / "csi.yaml")
