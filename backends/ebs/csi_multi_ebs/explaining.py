"""A backend whose creations ask EC2 and change nothing there: for `csi-multi explain`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from csi_multi.contract import DryRunReport, Setting, Unpredictable, Volume, VolumeRequest

from .backend import EbsBackend
from .config import Config
from .ec2 import Ec2

ID = f"vol-{'0' * 17}"
LOOKS = {
    "DescribeAvailabilityZones": "which zones there are; known for five minutes",
    "DescribeSnapshots": "whether the snapshot is ours, complete, and how large",
    "DescribeVolumes": "whether the source is ours, and in which zone",
}
MAKES = {
    "CreateVolume": "makes it with all its tags; the token lets EC2 know a repeated request, and finds the same volume",
    "CopyVolumes": "makes it with all its tags in its source's zone; EC2 knows a repeated request by the token",
}
TAGS = {
    "CreateTags": "says whose it is, in one call; other tags and the data stay as they are",
    "DeleteTags": "takes off what says that it is this driver's; other tags and the data stay as they are",
}
SETTLES = "looks until it can be attached, for all volumes that are in the making at once"


class DryRunBackend(EbsBackend):
    def __init__(self, config: Config, setting: Setting, report: DryRunReport) -> None:
        self._door = _Ec2(config, f"{setting.driver}-{setting.instance}", report)
        super().__init__(config, setting, self._door)

    def create_volume(self, request: VolumeRequest) -> Volume:
        self._door.expect(request)
        return super().create_volume(request)


class _Ec2(Ec2):
    """EC2 that is only asked. What would be made is shown as if it were there."""

    def __init__(self, config: Config, session: str, report: DryRunReport) -> None:
        super().__init__(config, session)
        self._config = config
        self._report = report
        self._zones = set(config.zones) or {f"{config.region}{letter}" for letter in "abc"}
        self._seen: dict[str, str] = {}  # zones of volumes
        self._made: list[dict[str, Any]] = []

    def expect(self, request: VolumeRequest) -> None:
        """Let the zones that are asked for exist, where EC2 cannot be asked whether they do."""
        places = request.topology.candidates if request.topology else ()
        self._zones |= {place["zone"] for place in places if "zone" in place}

    def _call(self, call: str, **words: Any) -> dict[str, Any]:
        told = {key: word for key, word in words.items() if word is not None}
        shown = (call, msgspec.json.encode(told).decode())
        if call in MAKES:
            self._report.change(*shown, why=MAKES[call])
            return self._make(call, told)
        if call in TAGS:
            self._report.change(*shown, why=TAGS[call])
            return {}
        if call not in LOOKS:
            raise Unpredictable(f"{call} would be called; what becomes of it is not known")
        if self._made and call == "DescribeVolumes":
            self._report.look(*shown, why=SETTLES)
            return {"Volumes": self._made}
        self._report.look(*shown, why=LOOKS[call])
        return self._imagined(call) if self._report.offline else self._asked(call, words)

    def _asked(self, call: str, words: dict[str, Any]) -> dict[str, Any]:
        answer = super()._call(call, **words)
        self._seen |= {one["VolumeId"]: one["AvailabilityZone"] for one in answer.get("Volumes", ())}
        return answer

    def _imagined(self, call: str) -> dict[str, Any]:
        if call != "DescribeAvailabilityZones":
            raise Unpredictable("what the source is like is not known")
        self._report.assume(f"these zones exist and have room: {', '.join(sorted(self._zones))}")
        return {"AvailabilityZones": [{"ZoneName": zone} for zone in self._zones]}

    def _make(self, call: str, told: dict[str, Any]) -> dict[str, Any]:
        self._report.assume(f"EC2 makes it, and gives it an id: {ID} stands for it")
        made = {
            "VolumeId": ID,
            "State": "available",
            "Size": told["Size"],
            "AvailabilityZone": told.get("AvailabilityZone") or self._seen[told["SourceVolumeId"]],
            "VolumeType": told["VolumeType"],
            "CreateTime": datetime.now(UTC),
            "Iops": told.get("Iops"),
            "Throughput": told.get("Throughput"),
            "SnapshotId": told.get("SnapshotId"),
            "Tags": told["TagSpecifications"][0]["Tags"],
        }
        self._made = [made]
        return {"Volumes": [made]} if call == "CopyVolumes" else made
