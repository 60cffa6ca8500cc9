"""The same work with as few calls as it takes, in plain boto3.

Called with: EC2's endpoint, volumes, threads, a name, instances. Prints a JSON object: the seconds that creating
and attaching took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config

MAX_IDS = 500  # ids per describe
# As many tags, as long, as the driver writes: EC2 here takes most of a creation's time to keep them.
TAGS = {"csi-multi/owner": 37, "csi-multi/name": 28, "csi-multi/stamp.0": 69, "CSIVolumeName": 0}
PAUSE = 0.2  # seconds between describes: the backend's own beginning


def main(endpoint: str, volumes: str, threads: str, name: str, *instances: str) -> None:
    options = Config(max_pool_connections=int(threads), retries={"mode": "standard", "total_max_attempts": 4})
    ec2 = boto3.client("ec2", region_name="eu-west-1", endpoint_url=endpoint, config=options)
    ec2.describe_availability_zones()  # connected, and all of botocore loaded
    with ThreadPoolExecutor(int(threads)) as pool:
        began = time.perf_counter()
        ids = list(pool.map(lambda number: create(ec2, f"{name}-{number}"), range(int(volumes))))
        wait(ec2, ids, lambda volume: volume["State"] == "available")
        created = time.perf_counter()
        list(pool.map(lambda at: attach(ec2, ids[at], at, instances), range(len(ids))))
        wait(ec2, ids, lambda volume: volume["Attachments"][0]["State"] == "attached")
        attached = time.perf_counter()
    print(json.dumps({"create": created - began, "attach": attached - created}))


def create(ec2: Any, token: str) -> str:
    tags = [{"Key": key, "Value": token.ljust(length, "-")} for key, length in TAGS.items()]
    specification = [{"ResourceType": "volume", "Tags": tags}]
    words = {"AvailabilityZone": "eu-west-1a", "Size": 1, "VolumeType": "gp3", "ClientToken": token}
    return str(ec2.create_volume(**words, TagSpecifications=specification)["VolumeId"])


def attach(ec2: Any, volume: str, number: int, instances: tuple[str, ...]) -> None:
    row, node = divmod(number, len(instances))
    device = f"/dev/xvd{'bc'[row // 26]}{chr(ord('a') + row % 26)}"
    ec2.attach_volume(VolumeId=volume, InstanceId=instances[node], Device=device)


def wait(ec2: Any, ids: list[str], done: Callable[[Any], bool]) -> None:
    """Poll all volumes together until each is done."""
    left: Iterable[str] = ids
    while left := list(left):
        time.sleep(PAUSE)
        rows = [row for start in range(0, len(left), MAX_IDS) for row in look(ec2, left[start : start + MAX_IDS])]
        left = [row["VolumeId"] for row in rows if not done(row)]


def look(ec2: Any, ids: list[str]) -> list[Any]:
    return list(ec2.describe_volumes(VolumeIds=ids)["Volumes"])


if __name__ == "__main__":
    main(*sys.argv[1:])
