"""Run a command in a guest that is an EC2 instance: what EC2 attaches to it is plugged in as an NVMe disk.

    python -m backends.ebs.tests.hotplug -- COMMAND...

Here run EC2 (fake_ec2.py) and the guest's qemu, in the guest the command. These variables tell it where to find what:

    HOTPLUG_EC2       URL of EC2
    HOTPLUG_REGION    and its region
    HOTPLUG_INSTANCE  the guest's instance id, in the region's zone a
    HOTPLUG_OTHER     another instance there, which is no machine at all
    HOTPLUG_BUS       URL of the disks themselves (XML-RPC, hotplug_bus.Bus and Everything), without EC2
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from xmlrpc.server import SimpleXMLRPCServer

from .fake_ec2 import FakeEc2
from .fake_ec2_server import Ec2Server
from .hotplug_bus import Bus, qemu_words

PROJECT = Path(__file__).resolve().parents[3]
TOOL = PROJECT / "tests" / "guest" / "run.py"
LOOPBACK, SEEN = "127.0.0.1", "10.0.2.2"  # the same, as the guest sees it
MODULES = ("loop", "nvme", "dm-crypt")
ENDED = 30.0  # seconds for the guest's tool to clean up


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="3G", help="of the guest (default: %(default)s)")
    parser.add_argument("--timeout", default="3600", help="seconds, boot included (default: %(default)s)")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with (
        tempfile.TemporaryDirectory(prefix="csi-multi-hotplug-") as directory,
        closing(Bus(Path(directory) / "qmp", Path(directory))) as bus,
        _cloud(bus) as (cloud, instance, other),
        _served(bus, cloud) as url,
    ):
        environment = {
            "HOTPLUG_EC2": cloud.endpoint.replace(LOOPBACK, SEEN),
            "HOTPLUG_REGION": cloud.region,
            "HOTPLUG_INSTANCE": instance,
            "HOTPLUG_OTHER": other,
            "HOTPLUG_BUS": url.replace(LOOPBACK, SEEN),
        }
        words = ["--network", "--memory", options.memory, "--timeout", options.timeout]
        words += ["--modules", ",".join(MODULES)]
        words += [f"--qemu-arg={word}" for word in qemu_words(Path(directory) / "qmp")]
        status = _guest([*words, "--", *options.command], environment)
    for trouble in cloud.internal_errors:
        print(f"hotplug: the simulated EC2 failed: {trouble!r}", file=sys.stderr)
    return status or bool(cloud.internal_errors)


@contextmanager
def _cloud(bus: Bus) -> Iterator[tuple[FakeEc2, str, str]]:
    """Start EC2 with two instances; what is attached to the first are the bus's disks."""
    ec2_server = Ec2Server()
    try:
        cloud = FakeEc2(ec2_server)
        instance, other = cloud.instances(2, type="m7i.large")
        connect(cloud, bus, instance)
        yield cloud, instance, other
        cloud.end()
    finally:
        ec2_server.close()


def connect(cloud: FakeEc2, bus: Bus, instance: str) -> None:
    """Let volumes have contents, and show as disks while they are attached to the instance."""
    sizes: dict[str, int] = {}

    def created(volume: str, source: str) -> None:
        if source:
            bus.copy(source, volume)

    def attached(volume: str, where: str, device: str) -> None:
        if where == instance:
            bus.plug(volume, volume.replace("-", ""), sizes.get(volume) or _size(cloud, volume))

    def detached(volume: str, where: str, device: str) -> None:
        if where == instance:
            bus.unplug(volume)

    cloud.on_created = created
    cloud.on_attached = attached
    cloud.on_detached = detached
    cloud.on_modified = sizes.__setitem__  # QEMU's disks take it when they are plugged in next
    cloud.on_snapshot = lambda snapshot, volume: bus.copy(volume, snapshot)
    cloud.on_deleted = bus.forget
    cloud.block_pages.contents = bus.blocks


def _size(cloud: FakeEc2, volume: str) -> int:
    """Return a volume's size in GiB, as EC2 says it."""
    (found,) = cloud.client().describe_volumes(VolumeIds=[volume])["Volumes"]
    return int(found["Size"])


class Everything:
    """What a test in the guest asks of the outside beside the bus."""

    def __init__(self, bus: Bus, cloud: FakeEc2) -> None:
        self._bus = bus
        self._cloud = cloud

    def plug(self, name: str, serial: str, gib: int) -> bool:
        return self._bus.plug(name, serial, gib)

    def plug_later(self, seconds: float, name: str, serial: str, gib: int) -> bool:
        threading.Timer(seconds, self._bus.plug, (name, serial, gib)).start()
        return True

    def unplug(self, name: str) -> bool:
        return self._bus.unplug(name)

    def plugged(self) -> list[str]:
        return self._bus.plugged()

    def forget(self, name: str) -> bool:
        return self._bus.forget(name)

    def attach_missing(self, volumes: list[str], instance: str) -> list[str]:
        return self._cloud.attach_missing(volumes, instance)

    def detach_all(self, volumes: list[str]) -> bool:
        self._cloud.detach_all(volumes)
        return True

    def everything(self) -> list[str]:
        """Return what is in EC2."""
        return list(self._cloud.everything())


@contextmanager
def _served(bus: Bus, cloud: FakeEc2) -> Iterator[str]:
    """Serve the bus on loopback, and yield the URL."""
    with SimpleXMLRPCServer((LOOPBACK, 0), logRequests=False, allow_none=True) as server:
        server.register_instance(Everything(bus, cloud))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _guest(words: list[str], environment: dict[str, str]) -> int:
    """Run the guest's tool to its end; end it if we are ended."""
    process = subprocess.Popen((sys.executable, str(TOOL), *words), env={**os.environ, **environment})
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(ENDED)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
