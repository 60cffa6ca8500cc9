"""The schema of the configuration: what an instance's part of the YAML file may contain."""

from __future__ import annotations

from typing import Annotated

from csi_multi.contract import Doc, Schema


class Config(Schema, frozen=True, kw_only=True):
    directory: Annotated[str, Doc("absolute path of a directory on a tmpfs with a size limit", pattern="^/.*[^/]$")]
