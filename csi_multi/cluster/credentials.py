"""The certificates of this process, read again when their files change.

A new set is taken only when its key belongs to its certificate: whoever replaces the files does not do it
at one instant. Until then the old set stays in use, and the log says so.
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
class Bundle:
    """One set of certificates, in PEM."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    def channel(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)

    def refuse_misfit(self) -> None:
        """Raise ssl.SSLError when it cannot be used. From memory: the files may change while we look."""
        import ssl  # only where there is a cluster

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.ca.decode("ascii", "replace"))
        descriptors = [os.memfd_create("certificate"), os.memfd_create("key")]
        try:
            for descriptor, text in zip(descriptors, (self.certificate, self.key), strict=True):
                os.write(descriptor, text)
            certificate, key = (f"/proc/self/fd/{one}" for one in descriptors)
            context.load_cert_chain(certificate, key, password="")  # never ask for one
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


class Credentials:
    """What `cluster.tls` names, as it is now."""

    def __init__(self, tls: TlsSection) -> None:
        """Raises ConfigError when the files cannot be used at all."""
        self._files = (Path(tls.ca), Path(tls.certificate), Path(tls.key))
        self._lock = threading.Lock()
        try:
            self._seen = self._marks()
            self._bundle = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"cluster.tls: {_said(error, self._files)}") from None

    def current(self) -> Bundle:
        """Return the newest usable set. The same object as before: nothing has changed."""
        with self._lock:
            try:
                marks = self._marks()
                if marks != self._seen:
                    self._seen = marks
                    self._bundle = self._read()
                    log.info("certificates are read again", extra={"fields": {"certificate": str(self._files[1])}})
            except (OSError, ValueError) as error:
                log.warning("new certificates cannot be used, the old ones stay: %s", _said(error, self._files))
            return self._bundle

    def server(self) -> grpc.ServerCredentials:
        """Return credentials that follow the files, and refuse clients without a certificate of the CA."""
        told = [self.current()]

        def newer() -> grpc.ServerCertificateConfiguration | None:
            bundle = self.current()
            if bundle is told[0]:
                return None
            told[0] = bundle
            return _configuration(bundle)

        return grpc.dynamic_ssl_server_credentials(_configuration(told[0]), newer, True)

    def _read(self) -> Bundle:
        ca, certificate, key = (file.read_bytes() for file in self._files)
        bundle = Bundle(ca, certificate, key)
        bundle.refuse_misfit()
        return bundle

    def _marks(self) -> tuple[tuple[int, int, int], ...]:
        states = [file.stat() for file in self._files]
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in states)


def _configuration(bundle: Bundle) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(bundle.key, bundle.certificate)], bundle.ca)


def _said(error: OSError | ValueError, files: tuple[Path, ...]) -> str:
    """Say what is wrong, and with which files."""
    if reason := getattr(error, "reason", ""):  # of an SSLError, which names no file: they are read from memory
        ca, certificate, key = files
        reason = str(reason).lower().replace("_", " ")
        return f"{certificate} and {key}, with {ca}, are not a set of PEM files that fits together: {reason}"
    return f"{getattr(error, 'filename', '') or files[0]} cannot be read: {getattr(error, 'strerror', error)}"
