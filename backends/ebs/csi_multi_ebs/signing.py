"""Signatures of calls to EC2: Signature Version 4 of a POST to the root of a host.

botocore's own signer builds the same text from a request object, and derives the key of the day anew for each call.
"""

from __future__ import annotations

import hmac
from datetime import datetime
from hashlib import sha256
from typing import Any

CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"
ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "ec2"


class Signer:
    """Signs calls to one host in one region. Thread-safe."""

    def __init__(self, host: str, region: str) -> None:
        """`host` is the header Host."""
        self._host = host
        self._region = region
        self._key: tuple[str, str, bytes] = "", "", b""  # day, secret key, and the key that follows from them

    def headers(self, body: bytes, credentials: Any, now: datetime) -> dict[str, str]:
        """Return the signed headers and the signature. `credentials` are botocore's, frozen; `now` is in UTC."""
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        signed = {"Content-Type": CONTENT_TYPE, "Host": self._host, "X-Amz-Date": stamp}
        if credentials.token:
            signed["X-Amz-Security-Token"] = credentials.token
        names = ";".join(signed).lower()  # they are sorted
        lines = "".join(f"{name.lower()}:{value}\n" for name, value in signed.items())
        request = f"POST\n/\n\n{lines}\n{names}\n{sha256(body).hexdigest()}"
        scope = f"{stamp[:8]}/{self._region}/{SERVICE}/aws4_request"
        text = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        signature = _hmac(self._day_key(stamp[:8], credentials.secret_key), text).hex()
        credential = f"Credential={credentials.access_key}/{scope}"
        signed["Authorization"] = f"{ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
        return signed

    def _day_key(self, day: str, secret: str) -> bytes:
        """Return the key for a day, computed once."""
        known_day, known_secret, key = self._key
        if (known_day, known_secret) != (day, secret):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, SERVICE, "aws4_request"):
                key = _hmac(key, part)
            self._key = day, secret, key
        return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), sha256)
