"""The environment variables for boto3: invalid credentials, and no other AWS to reach."""

from __future__ import annotations

import os
from typing import Final

KEY: Final = "AKIATESTSTESTSTESTS0"
SECRET: Final = "not-a-secret"
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


def foreign(name: str) -> bool:
    """Return whether a variable could make boto3 reach another AWS."""
    return name.startswith("AWS_") or name.lower().endswith("_proxy")
