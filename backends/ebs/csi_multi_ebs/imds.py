"""What an instance knows about itself: from its metadata service (IMDSv2), or from the configuration.

The service answers on a link-local address, without a proxy, and only whoever first got a token by PUT. Which
instance it is and where, never changes while this process lives, and is asked once.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import FailedPrecondition, Unavailable

from .config import Config

TOKEN_SECONDS = 6 * 3600  # the longest that the service gives
EARLY = 60.0  # seconds before its end at which a token is not used any more
TIME_LIMIT = 2.0  # seconds per request
TRIES = 3
PAUSE = 0.3  # seconds between two tries
UNAUTHORIZED = 401  # the token has ended
FORBIDDEN = 403  # the service is switched off
ABSENT = 404

SYS = Path("/sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    instance: str
    zone: str
    type: str


class Metadata:
    """The instance that this process runs on. Threads may share it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        # An empty table of proxies, else those of the environment would be asked for a link-local address.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._lock = threading.Lock()
        self._identity: Identity | None = None
        self._token = ""
        self._token_ends = 0.0

    def identity(self) -> Identity:
        """Return who and where the instance is. Raises Unavailable, FailedPrecondition."""
        with self._lock:
            if self._identity is None:
                self._identity = self._stated() if self._static else self._asked()
            return self._identity

    def interfaces(self) -> int:
        """Return how many network interfaces are attached now, at least 1. Raises as `identity` does."""
        return max(1, len(self._listed("network/interfaces/macs/")))

    def launched(self) -> int:
        """Return how many EBS volumes beside the root were attached by the instance's launch. Raises as `identity`."""
        return sum(name.startswith("ebs") for name in self._listed("block-device-mapping/"))

    @property
    def _static(self) -> bool:
        return self._config.metadata == "static"

    def _stated(self) -> Identity:
        config = self._config
        given = {"instance_id": config.instance_id, "zone": config.zone}
        if missing := [key for key, value in given.items() if not value]:
            raise FailedPrecondition(f"with 'metadata: static' the configuration must have {' and '.join(missing)}")
        return Identity(instance=config.instance_id, zone=config.zone, type=config.instance_type)

    def _asked(self) -> Identity:
        return Identity(
            instance=self._get("instance-id"),
            zone=self._get("placement/availability-zone"),
            type=self._get("instance-type"),
        )

    def _listed(self, path: str) -> list[str]:
        if self._static:
            return []
        with self._lock:
            return self._get(path, absent="").split()

    def _get(self, path: str, absent: str | None = None) -> str:
        """Return a value; `absent` where there is none of this name."""
        for renew in (False, True):
            try:
                return self._request("GET", f"meta-data/{path}", {"X-aws-ec2-metadata-token": self._valid(renew)})
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == ABSENT and absent is not None:
                    return absent
                if error.code != UNAUTHORIZED or renew:
                    raise self._refused(error) from None
        raise AssertionError

    def _valid(self, renew: bool) -> str:
        """Return a token that is valid for a while."""
        if renew or time.monotonic() > self._token_ends:
            asked = time.monotonic()
            try:
                self._token = self._request(
                    "PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                )
            except urllib.error.HTTPError as error:
                error.close()
                raise self._refused(error) from None
            self._token_ends = asked + TOKEN_SECONDS - EARLY
        return self._token

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        """Return the answer's text; no connection and errors of the server are tried again. Raises HTTPError."""
        url = f"{self._config.metadata_endpoint.rstrip('/')}/latest/{path}"
        request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - Config wants http(s)
        for left in reversed(range(TRIES)):
            try:
                with self._opener.open(request, timeout=TIME_LIMIT) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as error:
                if error.code < 500 or not left:
                    raise
                error.close()
            except OSError as error:  # URLError, too
                if not left:
                    raise self._silent(method, error) from None
            time.sleep(PAUSE)
        raise AssertionError

    def _silent(self, method: str, error: OSError) -> Unavailable | FailedPrecondition:
        """A machine of another maker has no such service and never will; it serves other backends only."""
        maker = self._text("class/dmi/id/sys_vendor")
        if maker and not maker.startswith("Amazon") and not self._text("hypervisor/uuid").startswith("ec2"):
            return FailedPrecondition(
                f"this machine is no EC2 instance: it was made by {maker!r}, and no instance metadata service "
                f"answers at {self._config.metadata_endpoint}"
            )
        hint = (
            "; in a container without the host's network its answers end one hop too early: increase the instance's "
            "HttpPutResponseHopLimit to 2, or use 'metadata: static'"
        )
        reason = getattr(error, "reason", error)
        return Unavailable(
            f"the instance metadata service at {self._config.metadata_endpoint} gives no answer ({reason})"
            f"{hint if method == 'PUT' else ''}"
        )

    def _text(self, path: str) -> str:
        try:
            return (SYS / path).read_text().strip()
        except OSError:
            return ""  # not told, for example in a container

    def _refused(self, error: urllib.error.HTTPError) -> Unavailable | FailedPrecondition:
        where = f"the instance metadata service at {self._config.metadata_endpoint}"
        if error.code == FORBIDDEN:
            return FailedPrecondition(
                f"{where} is switched off; set the instance's HttpEndpoint to enabled, or use 'metadata: static'"
            )
        return Unavailable(f"{where} answers {error.code} ({error.reason})")
