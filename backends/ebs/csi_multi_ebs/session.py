"""Credentials and clients of an instance.

Credentials come from the profile if one is named, else from botocore's default chain (environment, web
identity, instance role); with a role they are exchanged for the role's, and renewed before they expire.
Nothing is imported, read or asked for before the first client is wanted.
"""

from __future__ import annotations

import re
import threading
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from . import models, patience
from .config import Config

CONNECTIONS = 1024  # kept per client at most; one more would be opened for one call, and with TLS cost more than it
BRIEFLY = 2  # attempts at what can be done without

_making = threading.Lock()  # botocore's sessions and loaders are not thread-safe; its clients are


class Session:
    """Clients of one account and region, made when they are first wanted. Thread-safe."""

    def __init__(self, config: Config, name: str) -> None:
        """`name` is what an assumed role's session is called in CloudTrail."""
        self._config = config
        self._name = re.sub(r"[^\w+=,.@-]", "-", name, flags=re.ASCII)[:64]
        self._clients: dict[str, Any] = {}

    def client(self, group: str) -> Any:
        """Return the client of a group of calls. Raises botocore's exceptions for bad credentials."""
        if (client := self._clients.get(group)) is None:
            with _making:
                if (client := self._clients.get(group)) is None:
                    client = self._clients[group] = self._new_client(group)
        return client

    def close(self) -> None:
        """Close all connections."""
        with _making:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _new_client(self, group: str) -> Any:
        session = self._as_role if self._config.role_arn else self._source
        endpoint = self._config.endpoint
        if service := models.SERVICES.get(group):
            options = self._options(min(BRIEFLY, self._config.max_attempts))
            return _patient(session.create_client(service, endpoint_url=_of_others(endpoint), config=options))
        once = group == "snapshot"  # no call is repeated, because EC2 would take it for a second one
        client = session.create_client("ec2", endpoint_url=endpoint or None, config=self._options(1 if once else 0))
        client.meta.events.register_first("needs-retry.ec2", _final)
        return _patient(client)

    @cached_property
    def _source(self) -> Any:
        return self._new(self._config.profile or None)

    @cached_property
    def _as_role(self) -> Any:
        from botocore.credentials import DeferredRefreshableCredentials

        session = self._new(None)
        credentials = DeferredRefreshableCredentials(self._assume, "sts-assume-role")
        session.register_component("credential_provider", _Provided(credentials))
        return session

    def _new(self, profile: str | None) -> Any:
        from botocore.session import Session as Botocore

        session = Botocore(profile=profile)
        session.register_component("data_loader", models.loader())
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)
        session.set_config_variable("region", self._config.region)
        return session

    def _options(self, attempts: int = 0) -> Any:
        from botocore.config import Config as Options

        return Options(
            connect_timeout=self._config.connect_seconds,
            read_timeout=self._config.read_seconds,
            retries={"mode": self._config.retry_mode, "total_max_attempts": attempts or self._config.max_attempts},
            max_pool_connections=CONNECTIONS,
            user_agent=self._agent,
            tcp_keepalive=True,
        )

    @cached_property
    def _agent(self) -> str:
        """Who we are, put together once: botocore would do it twice per call, a tenth of what a call costs."""
        return f"{self._source.user_agent()} csi-multi"

    def _assume(self) -> dict[str, str]:
        """Get credentials of the role, in the form that botocore renews them from."""
        words = {"RoleArn": self._config.role_arn, "RoleSessionName": self._name}
        if self._config.external_id:
            words["ExternalId"] = self._config.external_id
        with _making:
            sts = self._source.create_client(
                "sts", endpoint_url=_of_others(self._config.endpoint), config=self._options()
            )
        try:
            told = _patient(sts).assume_role(**words)["Credentials"]
        finally:
            sts.close()
        return {
            "access_key": told["AccessKeyId"],
            "secret_key": told["SecretAccessKey"],
            "token": told["SessionToken"],
            "expiry_time": told["Expiration"].isoformat(),
        }


class _Provided:
    """A source of credentials for botocore that has them."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def load_credentials(self) -> Any:
        return self._credentials


def _of_others(endpoint: str) -> str | None:
    """Return where STS and Service Quotas are: at the endpoint too, unless that is EC2's own (vpce-1.ec2.…)."""
    return endpoint if endpoint and "ec2" not in (urlsplit(endpoint).hostname or "").split(".") else None


def _time(text: str) -> datetime:
    """Read a time. botocore's way understands all that people write, and takes a third of a describe's time."""
    return datetime.fromisoformat(text)


def _final(response: tuple[Any, dict[str, Any]] | None, **_: Any) -> None:
    """Keep botocore from repeating what will not change: a zone without room answers with a server error."""
    if response and response[1].get("Error", {}).get("Code") == "InsufficientVolumeCapacity":
        response[0].status_code = 400


def _patient(client: Any) -> Any:
    """Let a client repeat nothing that nobody waits for any more."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register_first(f"needs-retry.{service}", _over)
    return client


def _over(**_: Any) -> bool | None:
    """Answer botocore whether to repeat a call: no, or let it decide (None)."""
    return False if patience.is_over() else None
