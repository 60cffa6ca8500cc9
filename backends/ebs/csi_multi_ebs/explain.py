"""The dry run for `csi-multi explain` and `csi-multi import`: EC2 is read, and nothing there is changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from csi_multi.contract import DryRunReport, Setting, Unpredictable, VolumeRequest

from .client import Client
from .config import Config

PLACEHOLDER_ID = f"vol-{'0' * 17}"
READS = {
    "DescribeAvailabilityZones": "which zones exist; cached for five minutes",
    "DescribeSnapshots": "whether the snapshot belongs to this instance, is completed, and how large it is",
    "DescribeVolumes": "whether the source belongs to this instance, and in which zone it is",
}
CREATES = {
    "CreateVolume": "creates the volume with all its tags; a repeated request has the same token and finds the volume",
    "CopyVolumes": "creates the volume with all its tags in the zone of its source; a repeated request finds it",
}
TAGGING = {
    "CreateTags": "marks the volume as this instance's, in one call; its other tags and its data stay as they are",
    "DeleteTags": "removes the driver's tags from the volume; its other tags and its data stay as they are",
}
POLLS = "polls until the volume can be attached; one call for all volumes that are being created"


class DryRunClient(Client):
    """Makes only the calls that read. A volume that would be created is shown as if it existed."""

    def __init__(self, config: Config, setting: Setting, report: DryRunReport) -> None:
        super().__init__(config, f"{setting.driver}-{setting.instance}")
        self._report = report
        self._zones = set(config.zones) or {f"{config.region}{letter}" for letter in "abc"}
        self._zone_ids: list[str] = []  # requested ones, of zones that are not named
        self._source_zones: dict[str, str] = {}  # by volume id
        self._created: list[dict[str, Any]] = []

    def assume_zones(self, request: VolumeRequest) -> None:
        """Assume that the requested zones exist, when EC2 is not called."""
        topologies = request.topology.candidates if request.topology else ()
        self._zone_ids = sorted({one["zone-id"] for one in topologies if "zone-id" in one and "zone" not in one})
        self._zones |= {one["zone"] for one in topologies if "zone" in one}

    def _call(self, call: str, **fields: Any) -> dict[str, Any]:
        sent = {key: value for key, value in fields.items() if value is not None}
        step = (call, msgspec.json.encode(sent).decode())
        if call in CREATES:
            self._report.record_change(*step, why=CREATES[call])
            return self._create(call, sent)
        if call in TAGGING:
            self._report.record_change(*step, why=TAGGING[call])
            return {}
        if call not in READS:
            raise Unpredictable(f"{call} would be called; its result is not known in a dry run")
        if self._created and call == "DescribeVolumes":
            self._report.record_read(*step, why=POLLS)
            return {"Volumes": self._created}
        self._report.record_read(*step, why=READS[call])
        return self._assumed(call) if self._report.offline else self._read(call, fields)

    def _read(self, call: str, fields: dict[str, Any]) -> dict[str, Any]:
        response = super()._call(call, **fields)
        self._source_zones |= {one["VolumeId"]: one["AvailabilityZone"] for one in response.get("Volumes", ())}
        return response

    def _assumed(self, call: str) -> dict[str, Any]:
        if call != "DescribeAvailabilityZones":
            raise Unpredictable("the source is not known in an offline dry run; run it without --offline")
        if self._zone_ids:
            raise Unpredictable(
                f"which zone has the id {self._zone_ids[0]!r} is not known in an offline dry run; run it without "
                "--offline, or name the zone"
            )
        self._report.record_assumption(f"these zones exist and have capacity: {', '.join(sorted(self._zones))}")
        return {"AvailabilityZones": [{"ZoneName": zone} for zone in self._zones]}

    def _create(self, call: str, sent: dict[str, Any]) -> dict[str, Any]:
        self._report.record_assumption(f"EC2 creates the volume and gives it an id: {PLACEHOLDER_ID} stands for it")
        created = {
            "VolumeId": PLACEHOLDER_ID,
            "State": "available",
            "Size": sent["Size"],
            "AvailabilityZone": sent.get("AvailabilityZone") or self._source_zones[sent["SourceVolumeId"]],
            "VolumeType": sent["VolumeType"],
            "CreateTime": datetime.now(UTC),
            "Iops": sent.get("Iops"),
            "Throughput": sent.get("Throughput"),
            "SnapshotId": sent.get("SnapshotId"),
            "Tags": sent["TagSpecifications"][0]["Tags"],
        }
        self._created = [created]
        return {"Volumes": [created]} if call == "CopyVolumes" else created
