"""The calls for what not every storage offers: group snapshots, changed blocks and health."""

from __future__ import annotations

from collections.abc import Collection

from .labels import OWNER
from .listing import MAX_PAGE, chunks, filters
from .option_calls import OptionCalls, tag_specification
from .resources import BlockPage, Ec2Snapshot, Ec2Volume, Ec2VolumeStatus, Tags

UNHEALTHY = ("impaired", "warning")  # what EC2 calls a volume that its checks did not find in order
MAX_BLOCKS = 10_000  # blocks per page
MAX_FILTER_IDS = 190  # of the 200 values that the filters of a call may have, and one is the owner


class FeatureCalls(OptionCalls):
    """A part of Client, which makes the calls."""

    # Group snapshots

    def create_snapshots(
        self, instance: str, excluded: Collection[str], tags: Tags, description: str, outpost: str = ""
    ) -> list[Ec2Snapshot]:
        """Create snapshots of all volumes of an instance, at one point in time, but not of its root volume and of
        those that are excluded. It has no client token, so it is sent once, as CreateSnapshot is."""
        response = self._call(
            "CreateSnapshots",
            InstanceSpecification={
                "InstanceId": instance,
                "ExcludeBootVolume": True,
                **({"ExcludeDataVolumeIds": sorted(excluded)} if excluded else {}),
            },
            Description=description,
            OutpostArn=outpost or None,
            TagSpecifications=tag_specification("snapshot", tags),
        )
        return [Ec2Snapshot.read(one) for one in response.get("Snapshots", ())]

    # Changed blocks

    def snapshot_blocks(self, snapshot: str, start: int, token: str) -> BlockPage:
        """Return a page of the blocks that were ever written, from block `start`, or where the token says.

        Raises NotFound, and InvalidToken for a token that has expired.
        """
        response = self._call(
            "ListSnapshotBlocks",
            SnapshotId=snapshot,
            MaxResults=MAX_BLOCKS,
            NextToken=token or None,
            StartingBlockIndex=None if token else start,
        )
        return BlockPage.read(response, "Blocks")

    def changed_blocks(self, base: str, target: str, start: int, token: str) -> BlockPage:
        """Return a page of the blocks that differ, as snapshot_blocks does. Also raises UnrelatedSnapshots."""
        response = self._call(
            "ListChangedBlocks",
            FirstSnapshotId=base,
            SecondSnapshotId=target,
            MaxResults=MAX_BLOCKS,
            NextToken=token or None,
            StartingBlockIndex=None if token else start,
        )
        return BlockPage.read(response, "ChangedBlocks")

    # Health

    def volume_statuses(self, ids: Collection[str]) -> dict[str, Ec2VolumeStatus]:
        """Return the result of EC2's checks, of the volumes that EC2 shows."""
        return {one["VolumeId"]: Ec2VolumeStatus.read(one) for one in self._statuses(ids)}

    def unhealthy_volumes(self) -> dict[str, Ec2VolumeStatus]:
        """Return the volumes of the account that EC2's checks did not find in order, whoever's they are."""
        wanted = filters({"volume-status.status": UNHEALTHY})
        found = self._all("DescribeVolumeStatus", "VolumeStatuses", Filters=wanted, MaxResults=MAX_PAGE)
        return {one["VolumeId"]: Ec2VolumeStatus.read(one) for one in found}

    def cut_off_instances(self) -> set[str]:
        """Return the running instances of the account that cannot reach at least one of their volumes."""
        wanted = filters({"attached-ebs-status.status": ["impaired"]})
        found = self._all("DescribeInstanceStatus", "InstanceStatuses", Filters=wanted, MaxResults=MAX_PAGE)
        return {one["InstanceId"] for one in found}

    def volumes_attached_to(self, instances: Collection[str], owner: str) -> list[Ec2Volume]:
        """Return the owner's volumes that are attached to one of these instances."""
        found: list[Ec2Volume] = []
        for some in chunks(sorted(instances), MAX_FILTER_IDS):
            found += self._owned(owner, {"attachment.instance-id": some})
        return found

    def failed_volumes(self, owner: str) -> list[Ec2Volume]:
        """Return the owner's volumes that EC2 has given up."""
        return self._owned(owner, {"status": ["error"]})

    def _owned(self, owner: str, more: dict[str, list[str]]) -> list[Ec2Volume]:
        wanted = filters({f"tag:{OWNER}": [owner], **more})
        found = self._all("DescribeVolumes", "Volumes", Filters=wanted, MaxResults=MAX_PAGE)
        return [Ec2Volume.read(one) for one in found]
