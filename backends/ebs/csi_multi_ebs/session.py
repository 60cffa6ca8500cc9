"""botocore's credentials and clients for an instance, and until when a call may be repeated.

Credentials come from the profile if one is configured, else from botocore's default chain (environment, web
identity, instance role). With a role they are exchanged for the role's, and renewed before they expire.
Nothing is imported, read or requested before the first client is needed.

A call is repeated only as long as the caller of the RPC waits for the answer. That deadline is thread-local: it is
known where the RPC begins, and needed far below.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from . import botocore_model
from .config import Config
from .transport import Transport

_botocore_lock = threading.Lock()  # botocore's sessions and loaders are not thread-safe; its clients are


class Session:
    """The clients for one account and region, created when they are first needed. Thread-safe."""

    def __init__(self, config: Config, name: str) -> None:
        """`name` is the name of an assumed role's session in CloudTrail."""
        self._config = config
        self._name = re.sub(r"[^\w+=,.@-]", "-", name, flags=re.ASCII)[:64]
        self._clients: dict[str, Any] = {}
        self._transport: Transport | None = None  # made with the client for EC2

    def send(self, call: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Make a call of botocore_model.CALLS and return its answer. Raises botocore's exceptions."""
        from botocore import xform_name

        group = botocore_model.CALLS[call]
        client = self.client(group)
        if group == "ec2" and self._transport:
            return self._transport.call(call, fields)
        answer: dict[str, Any] = getattr(client, xform_name(call))(**fields)
        return answer

    def client(self, group: str) -> Any:
        """Return the client for a group of calls. Raises botocore's exceptions for bad credentials."""
        if (client := self._clients.get(group)) is None:
            with _botocore_lock:
                if (client := self._clients.get(group)) is None:
                    client = self._clients[group] = self._new_client(group)
        return client

    def close(self) -> None:
        """Close all connections."""
        with _botocore_lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
            if self._transport:
                self._transport.close()

    def _new_client(self, group: str) -> Any:
        botocore = self._role_session if self._config.role_arn else self._base_session
        endpoint = self._config.endpoint
        if service := botocore_model.SERVICES.get(group):
            return botocore.create_client(service, endpoint_url=_other_endpoint(endpoint), config=self._options)
        client = botocore.create_client("ec2", endpoint_url=endpoint or None, config=self._options)
        parser = botocore.get_component("response_parser_factory").create_parser("ec2")
        self._transport = Transport(client, parser, botocore.get_config_variable("ca_bundle"))
        return client

    @cached_property
    def _base_session(self) -> Any:
        return self._new_session(self._config.profile or None)

    @cached_property
    def _role_session(self) -> Any:
        from botocore.credentials import DeferredRefreshableCredentials

        session = self._new_session(None)
        credentials = DeferredRefreshableCredentials(self._assume, "sts-assume-role")
        session.register_component("credential_provider", _FixedProvider(credentials))
        return session

    def _new_session(self, profile: str | None) -> Any:
        from botocore.session import Session as Botocore

        logging.getLogger("botocore").setLevel(logging.INFO)  # at DEBUG it logs credentials
        session = Botocore(profile=profile)
        session.register_component("data_loader", botocore_model.loader())
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
        session.set_config_variable("region", self._config.region)
        return session

    @cached_property
    def _options(self) -> Any:
        from botocore.config import Config as Options

        return Options(
            connect_timeout=self._config.connect_seconds,
            read_timeout=self._config.read_seconds,
            retries={"mode": "standard", "total_max_attempts": 1},  # retries.py repeats calls
            user_agent=self._user_agent,
            use_fips_endpoint=self._config.fips or None,  # None: as the environment says
            tcp_keepalive=True,
        )

    @cached_property
    def _user_agent(self) -> str:
        """The User-Agent header, computed once: botocore computes it twice per call, a tenth of the cost of a call."""
        return f"{self._base_session.user_agent()} csi-multi {self._config.user_agent_extra}".rstrip()

    def _assume(self) -> dict[str, str]:
        """Return credentials of the role, in the form that botocore renews them from."""
        fields = {"RoleArn": self._config.role_arn, "RoleSessionName": self._name}
        if self._config.external_id:
            fields["ExternalId"] = self._config.external_id
        with _botocore_lock:
            sts = self._base_session.create_client(
                "sts", endpoint_url=_other_endpoint(self._config.endpoint), config=self._options
            )
        try:
            credentials = sts.assume_role(**fields)["Credentials"]
        finally:
            sts.close()
        return {
            "access_key": credentials["AccessKeyId"],
            "secret_key": credentials["SecretAccessKey"],
            "token": credentials["SessionToken"],
            "expiry_time": credentials["Expiration"].isoformat(),
        }


class _FixedProvider:
    """A credential provider of botocore that returns the given credentials."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def load_credentials(self) -> Any:
        return self._credentials


def _other_endpoint(endpoint: str) -> str | None:
    """Return the endpoint of STS and Service Quotas: the configured one, unless that is EC2's own (vpce-1.ec2.…)."""
    return endpoint if endpoint and "ec2" not in (urlsplit(endpoint).hostname or "").split(".") else None


def _parse_time(text: str) -> datetime:
    """Read a time of EC2. botocore's own parser accepts many formats, and takes a third of the time of a describe."""
    return datetime.fromisoformat(text)


class _RpcDeadline(threading.local):
    at = 0.0  # time.monotonic() until which the caller of this thread's current or last RPC waits for the answer


_deadline = _RpcDeadline()


def set_rpc_deadline(deadline: float) -> None:
    """Record until when (time.monotonic()) the caller of this thread's RPC waits for the answer."""
    _deadline.at = deadline


def call_deadline(seconds: float) -> float:
    """Return until when a call may be repeated. An RPC deadline that is already over belongs to an earlier RPC."""
    now = time.monotonic()
    return min(now + seconds, _deadline.at) if _deadline.at > now else now + seconds
