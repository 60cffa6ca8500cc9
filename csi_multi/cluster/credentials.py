"""The certificates of this process, reloaded when their files change.

A new set is used only when its key belongs to its certificate, because the files are not replaced at one instant.
Until then the old set stays in use, and the log says so.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from ..config.cluster import TlsSection
from ..config.document import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CertificateSet:
    """CA, certificate and key, in PEM."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)

    def validate(self) -> None:
        """Raise ssl.SSLError when the set cannot be used. It is read from memory, because the files may change."""
        import ssl  # only needed in a cluster

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.ca.decode("ascii", "replace"))
        descriptors = [os.memfd_create("certificate"), os.memfd_create("key")]
        try:
            for descriptor, text in zip(descriptors, (self.certificate, self.key), strict=True):
                os.write(descriptor, text)
            certificate, key = (f"/proc/self/fd/{one}" for one in descriptors)
            context.load_cert_chain(certificate, key, password="")  # never prompt for one
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


class Credentials:
    """The files of `cluster.tls`, with their present content."""

    def __init__(self, tls: TlsSection) -> None:
        """Raises ConfigError when the files cannot be used."""
        self._files = (Path(tls.ca), Path(tls.certificate), Path(tls.key))
        self._lock = threading.Lock()
        try:
            self._versions = self._file_versions()
            self._certificates = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"cluster.tls: {_describe(error, self._files)}") from None

    def current(self) -> CertificateSet:
        """Return the newest usable set; the same object as before when nothing has changed."""
        with self._lock:
            try:
                versions = self._file_versions()
                if versions != self._versions:
                    self._versions = versions
                    self._certificates = self._read()
                    log.info("certificates reloaded", extra={"fields": {"certificate": str(self._files[1])}})
            except (OSError, ValueError) as error:
                log.warning(
                    "new certificates cannot be used; the old ones stay in use: %s", _describe(error, self._files)
                )
            return self._certificates

    def server(self) -> grpc.ServerCredentials:
        """Return credentials that follow the files, and refuse clients without a certificate of the CA."""
        in_use = self.current()

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal in_use
            certificates = self.current()
            if certificates is in_use:
                return None
            in_use = certificates
            return _server_configuration(certificates)

        return grpc.dynamic_ssl_server_credentials(_server_configuration(in_use), newer, True)

    def _read(self) -> CertificateSet:
        ca, certificate, key = (file.read_bytes() for file in self._files)
        certificates = CertificateSet(ca, certificate, key)
        certificates.validate()
        return certificates

    def _file_versions(self) -> tuple[tuple[int, int, int], ...]:
        states = [file.stat() for file in self._files]
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in states)


def _server_configuration(certificates: CertificateSet) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(certificates.key, certificates.certificate)], certificates.ca)


def _describe(error: OSError | ValueError, files: tuple[Path, ...]) -> str:
    """Return what is wrong with which files. The content was read into memory, so an SSLError names no file."""
    if reason := getattr(error, "reason", ""):
        ca, certificate, key = files
        reason = str(reason).lower().replace("_", " ")
        return f"{certificate}, {key} and {ca} are not valid PEM files that belong together: {reason}"
    return f"{getattr(error, 'filename', '') or files[0]} cannot be read: {getattr(error, 'strerror', error)}"
