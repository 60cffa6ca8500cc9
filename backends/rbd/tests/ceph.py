"""A real Ceph cluster for tests: one monitor, one manager, one OSD, with cephx, in a directory of its own.

    with Cluster(tmp_path) as cluster:
        cluster.osd.pause()
        cluster.rbd("ls", cluster.pool)

It is there within seconds, takes 250 MB, and is gone with the process that made it, however that ends.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

from .ceph_commands import CephFailed, Commands, again_after_a_crash
from .ceph_daemon import Daemon
from .ceph_files import CAPS, USER, addresses, configuration, key, keyring

LIMIT = 60.0  # seconds for one command of the tests' own
_addresses = addresses()


class Cluster(Commands):
    """`store` is memstore, which a kill of the OSD empties, or bluestore. `settings` go into ceph.conf."""

    def __init__(self, directory: Path, *, address: str = "", store: str = "memstore", **settings: object) -> None:
        self.directory = directory
        self.address = address or next(_addresses)
        self.fsid = str(uuid.uuid4())
        self.key = key()
        self.keyring = directory / f"{USER}.keyring"
        self._conf = configuration(directory, self.address, self.fsid, store, settings)
        self._osd_id = str(uuid.uuid4())
        self.mon = Daemon(directory, "ceph-mon", "-i", "a")
        self.mgr = Daemon(directory, "ceph-mgr", "-i", "x")
        self.osd = Daemon(directory, "ceph-osd", "-i", "0", "--osd-uuid", self._osd_id)

    def __enter__(self) -> Cluster:
        try:
            self._write()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        for daemon in (self.osd, self.mgr, self.mon):
            daemon.kill()

    def _write(self) -> None:
        """Write the configuration, and all keys at once: the monitor's first keyring may have any."""
        for name in ("mon", "mgr", "osd"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "ceph.conf").write_text(self._conf)
        keys = {name: key() for name in CAPS} | {USER: self.key}
        (self.directory / "keyring").write_text(keyring(keys, {**CAPS, USER: user_caps(self.pool)}))
        self.keyring.write_text(f"[{USER}]\nkey = {self.key}\n")
        for file in (self.directory / "keyring", self.keyring):
            file.chmod(0o600)

    def _start(self) -> None:
        monmap = str(self.directory / "monmap")
        addresses = f"[v2:{self.address}:3300,v1:{self.address}:6789]"
        self.run("monmaptool", "--create", "--addv", "a", addresses, "--fsid", self.fsid, monmap)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", str(self.directory / "keyring"))
        self.mon.start()
        self.mgr.start()
        application = f"osd pool application enable {self.pool} rbd"
        self.ceph_each(f"osd new {self._osd_id} 0", f"osd pool create {self.pool} 8", application)
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", self._osd_id)
        self.osd.start()
        self.wait(self.serves, "serve")
        self.rbd("pool", "init", self.pool)  # a client that came before the OSD would ask again after five seconds

    def execute(self, command: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        status, stdout, stderr = self._execute(command, stdin.encode())
        return status, stdout.decode(), stderr.decode()

    def run_bytes(self, *command: str, given: bytes = b"") -> bytes:
        """Like run, for what is no text. Raises CephFailed."""
        status, stdout, stderr = again_after_a_crash(lambda: self._execute(command, given))
        if status:
            raise CephFailed(f"{' '.join(command)}: {status}: {stderr.decode(errors='replace')}", status)
        return stdout

    def _execute(self, command: tuple[str, ...], given: bytes) -> tuple[int, bytes, bytes]:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "CEPH_CONF": str(self.directory / "ceph.conf")}
        done = subprocess.run(command, input=given, env=environment, capture_output=True, timeout=LIMIT, check=False)
        return done.returncode, done.stdout, done.stderr

    def logs(self, size: int = 2000) -> str:
        files = [file for name in ("*.log", "*.out") for file in sorted(self.directory.glob(name))]
        return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-size:]}" for file in files)


def user_caps(pool: str) -> dict[str, str]:
    """Return what docs/rbd.md tells to give the driver's user."""
    return {"mon": "profile rbd", "osd": f"profile rbd pool={pool}", "mgr": f"profile rbd pool={pool}"}
