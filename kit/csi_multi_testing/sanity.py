"""csi-sanity, the CSI project's test suite: its command line and its JSON report."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from csi_multi.config.document import ConfigError
from csi_multi.contract import CommandTimedOut
from csi_multi.host.command import LocalHost

from .check import CheckState
from .driver import InstanceDriver
from .report import CheckResult
from .storage import Storage

NAME = "csi-sanity"
STATES = {
    "passed": CheckState.PASSED,
    "skipped": CheckState.SKIPPED,
    "pending": CheckState.SKIPPED,
}  # all others: failed
OUTPUT = "sanity.out"
TIME_LIMIT = 900.0  # seconds for all specs
RPCS = (
    *("CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume"),
    *("ControllerValidateVolumeCapabilities", "ControllerExpandVolume", "ControllerModifyVolume"),
    *("CreateSnapshot", "DeleteSnapshot", "ListSnapshots", "NodeStageVolume", "NodePublishVolume"),
)


class GinkgoSpec(msgspec.Struct, frozen=True):
    """One test of csi-sanity."""

    name: str
    state: str  # passed, skipped, pending, or how it failed
    message: str
    seconds: float


def run(
    binary: str,
    directory: Path,
    endpoints: tuple[str, str],
    *,
    access: str,
    size: int,
    secrets: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
    mutable: Mapping[str, str] | None = None,
) -> list[GinkgoSpec]:
    """Run the suite against the endpoints of node and controller, with its files in the directory.

    `access` is mount or block. Raises CommandTimedOut.
    """
    report = directory / "sanity.json"
    words = [
        f"--csi.endpoint={endpoints[0]}",
        f"--csi.controllerendpoint={endpoints[1]}",
        f"--csi.mountdir={directory}/mount",
        f"--csi.stagingdir={directory}/staging",
        f"--csi.testvolumeaccesstype={access}",
        f"--csi.testvolumesize={size}",
        f"--csi.testvolumeexpandsize={2 * size}",
        f"--ginkgo.json-report={report}",
        "--ginkgo.no-color",
    ]
    files = {
        "csi.secrets": {f"{rpc}Secret": dict(secrets) for rpc in RPCS} if secrets else None,
        "csi.testvolumeparameters": parameters,
        "csi.testvolumemutableparameters": mutable,
    }
    for option, content in files.items():
        if content:  # JSON is YAML, too
            file = directory / f"{option}.yaml"
            file.write_text(json.dumps(dict(content)))
            words.append(f"--{option}={file}")
    output = directory / OUTPUT
    try:
        result = LocalHost().run(binary, *words, ok=tuple(range(256)), timeout=TIME_LIMIT)
        output.write_text(result.stdout + result.stderr)
    except CommandTimedOut:
        output.write_text(f"ended after {TIME_LIMIT:g} s\n")
        raise
    return specs(report)


def specs(report: Path) -> list[GinkgoSpec]:
    """Read ginkgo's JSON report; empty if there is none."""
    if not report.exists():
        return []
    found = json.loads(report.read_text())[0]["SpecReports"]
    return [_spec(one) for one in found if one["LeafNodeType"] == "It"]


def _spec(one: Mapping[str, Any]) -> GinkgoSpec:
    name = " > ".join([*one["ContainerHierarchyTexts"], one["LeafNodeText"]])
    message = (one.get("Failure") or {}).get("Message", "")
    return GinkgoSpec(name=name, state=one["State"], message=message, seconds=round(one.get("RunTime", 0) / 1e9, 3))


@dataclass(frozen=True)
class SanitySuite:
    """csi-sanity as a part of a conformance run."""

    binary: str = ""
    missing: str = ""  # why it cannot run
    disabled: bool = False  # not requested

    def results(self, process: InstanceDriver, storage: Storage) -> Iterator[CheckResult]:
        """Run it against the driver with raw block volumes: filesystems are the core's work, not the backend's."""
        if self.disabled:
            return
        if reason := self.missing or self._unfit(storage):
            yield CheckResult(group=NAME, name=NAME, where=NAME, state=CheckState.SKIPPED, text=reason)
            return
        try:
            found = run(
                self.binary,
                process.directory,
                (process.endpoint, process.endpoint),
                access="block",
                size=storage.size,
                secrets=storage.secrets,
                parameters=storage.parameters,
                mutable=storage.mutable,
            )
        except CommandTimedOut as error:
            yield CheckResult(group=NAME, name=NAME, where=NAME, state=CheckState.FAILED, text=str(error))
            return
        if not found:
            text = f"csi-sanity wrote no report; its output is in {process.directory}/{OUTPUT}"
            yield CheckResult(group=NAME, name=NAME, where=NAME, state=CheckState.FAILED, text=text)
        for one in found:
            state = STATES.get(one.state, CheckState.FAILED)
            text = one.message or ("disabled in csi-sanity itself" if one.state == "pending" else "")
            yield CheckResult(group=NAME, name=one.name, where=NAME, state=state, text=text, seconds=one.seconds)

    def _unfit(self, storage: Storage) -> str:
        if os.geteuid() != 0:
            return "csi-sanity's tests of the node need root"
        return "" if storage.devices else "csi-sanity's tests of the node need Storage.devices"


def choose_suite(wanted: str, only: str) -> SanitySuite:
    """Return the suite that --sanity (a path, auto or no) and --only choose. Raises ConfigError."""
    if wanted == "no" or only not in NAME:
        return SanitySuite(disabled=True)
    if wanted != "auto":
        if not (found := shutil.which(wanted)):
            raise ConfigError(f"--sanity {wanted}: no such program; give the path of csi-sanity, auto or no")
        return SanitySuite(found)
    found = os.environ.get("CSI_SANITY") or shutil.which(NAME)
    if found:
        return SanitySuite(found)
    return SanitySuite(
        missing="csi-sanity was not found: put it on PATH, or give its path with --sanity or in CSI_SANITY"
    )
