"""Our controller and ceph-csi's, each in a namespace of the same pool, called with the same requests."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from csi_multi.rpc.client import Client

from .peers import Program
from .processes import Server, running
from .rbd_driver import AGAIN, LONG, PAUSE, SIZE, WRITER

FEATURES = "layering,exclusive-lock,object-map,fast-diff,deep-flatten"  # ours without any parameter
ETC = ("ld.so.cache", "nsswitch.conf", "passwd", "group")
# ceph-csi reads and writes at fixed paths: it gets /etc and /tmp of its own. The program may be in /tmp: it is opened
# before.
START = 'exec 3<"$1"; mount --bind "$2/etc" /etc; mount --bind "$2/tmp" /tmp; shift 2; exec /proc/self/fd/3 "$@"'
SETTLED = 0.3  # seconds without any use of the processor, after which a driver's work is done
LONGEST = 10.0  # seconds to wait for that
# Of an image that ceph-mgr still works on ceph-csi says INTERNAL, "still being used"; the sidecars repeat any error.
THEIRS_AGAIN = (*AGAIN, grpc.StatusCode.INTERNAL)


@dataclass(slots=True)
class Side:
    """One driver. `made` has the ids of what is there, by name."""

    server: Server
    caller: Client
    volume_parameters: Mapping[str, str]
    snapshot_parameters: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    again: Sequence[grpc.StatusCode] = AGAIN
    refused: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def create(self, name: str, source: Mapping[str, Any] | None = None) -> None:
        answer = self._call(
            "CreateVolume", name=name, parameters=self.volume_parameters, volume_content_source=source,
            capacity_range={"required_bytes": SIZE}, volume_capabilities=[WRITER],
        )  # fmt: skip
        self.made[name] = answer.volume.volume_id

    def snapshot(self, name: str) -> None:
        answer = self._call(
            "CreateSnapshot",
            name=f"{name}-snapshot",
            source_volume_id=self.made[name],
            parameters=self.snapshot_parameters,
        )
        self.made[f"{name}-snapshot"] = answer.snapshot.snapshot_id

    def restore(self, name: str) -> None:
        self.create(f"{name}-restored", {"snapshot": {"snapshot_id": self.made[f"{name}-snapshot"]}})

    def clone(self, name: str) -> None:
        self.create(f"{name}-clone", {"volume": {"volume_id": self.made[name]}})

    def expand(self, name: str) -> None:
        size = {"required_bytes": 2 * SIZE}
        self._call("ControllerExpandVolume", volume_id=self.made[f"{name}-clone"], capacity_range=size)

    def delete_copies(self, name: str) -> None:
        for copy in ("restored", "clone"):
            self.delete_volume(f"{name}-{copy}")

    def delete_snapshot(self, name: str) -> None:
        self._call("DeleteSnapshot", snapshot_id=self.made.pop(f"{name}-snapshot"))

    def delete_volume(self, name: str) -> None:
        self._call("DeleteVolume", volume_id=self.made.pop(name))

    def _call(self, rpc: str, **fields: Any) -> Any:
        """Repeat a call until it succeeds, as sidecars do. Raises the last error after LONG seconds."""
        ends = time.monotonic() + LONG
        while True:
            try:
                return getattr(self.caller, rpc)(**fields, secrets=self.secrets)
            except grpc.RpcError as error:
                if error.code() not in self.again or time.monotonic() > ends:
                    raise
            with self._lock:
                self.refused += 1
            time.sleep(PAUSE)


def timed(side: Side, work: Callable[[str], None], names: Sequence[str], callers: int) -> tuple[float, float]:
    """Do the work for all names. Return the seconds until the last answer, and the processor's until all is settled."""
    used = side.server.cpu(commands=True)
    with ThreadPoolExecutor(callers) as pool:
        began = time.perf_counter()
        list(pool.map(work, names))
        took = time.perf_counter() - began
    return took, settled(side.server) - used


def settled(server: Server) -> float:
    """Wait until the driver has done what it does after its answer. Return the processor time of all its life."""
    ends = time.monotonic() + LONGEST
    while time.monotonic() < ends:
        used = server.cpu(commands=True)
        time.sleep(SETTLED)
        if used == server.cpu(commands=True):
            break
    return server.cpu(commands=True)


@contextmanager
def ceph_csi(directory: Path, program: Program, cluster: Any, namespace: str) -> Iterator[Side]:
    """Their controller, as it runs without Kubernetes, for the block."""
    home = directory / "ceph-csi"
    for place in ("etc/ceph", "etc/ceph-csi-config", "tmp/csi/keys"):
        (home / place).mkdir(parents=True)
    for file in (Path("/etc") / name for name in ETC):
        if file.exists():
            shutil.copy(file, home / "etc")
    place_of = {"clusterID": "bench", "monitors": list(cluster.monitors), "rbd": {"radosNamespace": namespace}}
    (home / "etc/ceph-csi-config/config.json").write_text(json.dumps([place_of]))
    words = (
        *("unshare", "--mount", "sh", "-ec", START, "sh", str(program.path), str(home)),
        *("--type=rbd", "--controllerserver", "--nodeid=bench-node", "--drivername=rbd.csi.ceph.com"),
        *("--endpoint=unix:///tmp/theirs.sock", "--csi-addons-endpoint=unix:///tmp/addons.sock"),
        f"--stagingpath={home}/staging",  # not used; by this path the process is known to be ours
    )
    cluster_id = {"clusterID": "bench"}
    with running(home / "tmp", "theirs", words) as server:
        caller = Client(server.endpoint, timeout=LONG)
        try:
            caller.wait()
            yield Side(
                server,
                caller,
                volume_parameters={**cluster_id, "pool": cluster.pool, "imageFeatures": FEATURES},
                snapshot_parameters=cluster_id,
                secrets={"userID": cluster.user, "userKey": cluster.key},
                again=THEIRS_AGAIN,
            )
        finally:
            caller.close()
