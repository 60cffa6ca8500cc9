"""The schema of the configuration: what an instance's part of the YAML file may contain."""

from __future__ import annotations

from typing import Annotated

from csi_multi.contract import Doc, Schema


class Config(Schema, frozen=True, kw_only=True):
    directory: Annotated[str, Doc("absolute path of the shared directory, the same on all nodes", pattern="^/.*[^/]$")]
    take_over: Annotated[
        bool,
        Doc("open a volume although another node has it open, if that node was declared out of service"),
    ] = False
