"""The EC2 instance that a node is: its id, zone and type, from the metadata service (IMDSv2) or another source.

The service has a link-local address, is reached without a proxy, and requires a token that it issues on PUT. The
identity never changes while the process runs, so it is read once.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from csi_multi.contract import FailedPrecondition, NodeRecord, Unavailable

from . import node_identity
from .config import Config
from .node_identity import Identity

TOKEN_SECONDS = 6 * 3600  # the longest lifetime that the service allows
RENEW_SECONDS = 60.0  # before the end of a token's lifetime it is renewed
TIME_LIMIT = 2.0  # seconds per request
TRIES = 3
PAUSE = 0.3  # seconds between two tries
UNAUTHORIZED = 401  # the token has expired
FORBIDDEN = 403  # the service is switched off
ABSENT = 404

SYS = Path("/sys")


class InstanceMetadata:
    """The metadata of the instance that this process runs on. Thread-safe."""

    def __init__(self, config: Config, node_record: Callable[[], NodeRecord]) -> None:
        """`node_record` is that of Setting."""
        self._config = config
        self._node_record = node_record
        # No proxies: those of the environment cannot reach a link-local address.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._lock = threading.Lock()
        self._identity: Identity | None = None
        self._asks_service = config.metadata in ("imds", "auto")
        self._token = ""
        self._token_expires = 0.0

    def identity(self) -> Identity:
        """Return the instance's id, zone and type. Raises Unavailable, FailedPrecondition."""
        with self._lock:
            if self._identity is None:
                self._identity = self._find_identity()
            return self._identity

    def interfaces(self) -> int:
        """Return the number of network interfaces that are attached now, at least 1. Raises as `identity` does."""
        return max(1, len(self._list("network/interfaces/macs/")))

    def launch_volumes(self) -> int:
        """Return the number of EBS volumes beside the root that the launch attached. Raises as `identity` does."""
        return sum(name.startswith("ebs") for name in self._list("block-device-mapping/"))

    def _find_identity(self) -> Identity:
        match self._config.metadata:
            case "static":
                return node_identity.configured(self._config)
            case "kubernetes":
                return node_identity.recorded(self._node_record())
            case "imds":
                return self._read_identity()
        try:
            return self._read_identity()
        except (Unavailable, FailedPrecondition) as error:
            found = self._recorded_after(error)
        self._asks_service = False
        return found

    def _recorded_after(self, reason: Unavailable | FailedPrecondition) -> Identity:
        try:
            return node_identity.recorded(self._node_record())
        except (Unavailable, FailedPrecondition) as error:
            final = isinstance(error, FailedPrecondition)
            raise (FailedPrecondition if final else Unavailable)(f"{reason}; {error}") from None

    def _read_identity(self) -> Identity:
        return Identity(
            instance=self._get("instance-id"),
            zone=self._get("placement/availability-zone"),
            type=self._get("instance-type"),
            zone_id=self._get("placement/availability-zone-id", absent=""),
            outpost=self._get("outpost-arn", absent=""),
        )

    def _list(self, path: str) -> list[str]:
        if self._config.metadata == "auto":
            self.identity()  # the service may be out of reach
        if not self._asks_service:
            return []
        with self._lock:
            return self._get(path, absent="").split()

    def _get(self, path: str, absent: str | None = None) -> str:
        """Return a value; `absent` when the service has none of this name."""
        for renew in (False, True):
            try:
                return self._request("GET", f"meta-data/{path}", {"X-aws-ec2-metadata-token": self._valid_token(renew)})
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == ABSENT and absent is not None:
                    return absent
                if error.code != UNAUTHORIZED or renew:
                    raise self._http_error(error) from None
        raise AssertionError

    def _valid_token(self, renew: bool) -> str:
        """Return a token that stays valid for at least RENEW_SECONDS."""
        if renew or time.monotonic() > self._token_expires:
            requested = time.monotonic()
            try:
                self._token = self._request(
                    "PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                )
            except urllib.error.HTTPError as error:
                error.close()
                raise self._http_error(error) from None
            self._token_expires = requested + TOKEN_SECONDS - RENEW_SECONDS
        return self._token

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        """Return the response's text. Failed connections and server errors are retried. Raises HTTPError."""
        url = f"{self._config.metadata_endpoint.rstrip('/')}/latest/{path}"
        request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - Config wants http(s)
        for left in reversed(range(TRIES)):
            try:
                with self._opener.open(request, timeout=TIME_LIMIT) as response:
                    return str(response.read().decode())
            except urllib.error.HTTPError as error:
                if error.code < 500 or not left:
                    raise
                error.close()
            except OSError as error:  # URLError, too
                if not left:
                    raise self._unreachable(method, error) from None
            time.sleep(PAUSE)
        raise AssertionError

    def _unreachable(self, method: str, error: OSError) -> Unavailable | FailedPrecondition:
        """Return the error without a connection. A machine of another vendor never has the service: that is final."""
        vendor = self._sysfs("class/dmi/id/sys_vendor")
        if vendor and not vendor.startswith("Amazon") and not self._sysfs("hypervisor/uuid").startswith("ec2"):
            return FailedPrecondition(
                f"this machine is not an EC2 instance: its vendor is {vendor!r}, and no instance metadata service "
                f"answers at {self._config.metadata_endpoint}; use 'metadata: static'"
            )
        hint = (
            "; its responses do not reach a container without the host's network, one hop further away: set the "
            "instance's HttpPutResponseHopLimit to 2, or use 'metadata: kubernetes' or 'static'"
        )
        reason = getattr(error, "reason", error)
        return Unavailable(
            f"the instance metadata service at {self._config.metadata_endpoint} does not answer ({reason})"
            f"{hint if method == 'PUT' else ''}"
        )

    def _sysfs(self, path: str) -> str:
        try:
            return (SYS / path).read_text().strip()
        except OSError:
            return ""  # not readable, for example in a container

    def _http_error(self, error: urllib.error.HTTPError) -> Unavailable | FailedPrecondition:
        where = f"the instance metadata service at {self._config.metadata_endpoint}"
        if error.code == FORBIDDEN:
            return FailedPrecondition(
                f"{where} is switched off; set the instance's HttpEndpoint to enabled, or use "
                "'metadata: kubernetes' or 'static'"
            )
        return Unavailable(f"{where} answered {error.code} ({error.reason})")
