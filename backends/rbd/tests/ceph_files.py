"""The files from which a cluster starts: a configuration, a keyring, and addresses that no other cluster has."""

from __future__ import annotations

import base64
import itertools
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ADMIN, USER = "client.admin", "client.csi"
CAPS: Mapping[str, Mapping[str, str]] = {
    "mon.": {"mon": "allow *"},
    "osd.0": {"mon": "allow profile osd", "mgr": "allow profile osd", "osd": "allow *"},
    "mgr.x": {"mon": "allow profile mgr", "osd": "allow *", "mds": "allow *"},
    ADMIN: {"mon": "allow *", "osd": "allow *", "mgr": "allow *", "mds": "allow *"},
}
PORTS = (3300, 6789)  # a monitor's, as everywhere: a plain address finds both protocols
# Loading the manager's modules takes longer than all else together; these may be left out without a warning.
MODULES = (
    *("alerts", "cephadm", "dashboard", "diskprediction_local", "influx", "insights", "iostat", "k8sevents"),
    *("localpool", "mds_autoscaler", "nfs", "osd_perf_query", "osd_support", "prometheus", "restful", "rook"),
    *("selftest", "snap_schedule", "stats", "telegraf", "test_orchestrator", "zabbix"),
)
STORES = {
    # In memory; a clean stop saves it, a kill loses it.
    "memstore": {"memstore_device_bytes": 2 << 30, "osd_fast_shutdown": "false"},
    # In a sparse file, for what must survive a kill.
    "bluestore": {
        "bluestore_block_size": 4 << 30,
        "bluestore_block_create": "true",
        "bluestore_cache_autotune": "false",
        "bluestore_cache_size": 64 << 20,
        "bluestore_fsck_on_mount": "false",
        "bdev_aio_poll_ms": 10,  # every end of using the file waits for it, and there are a dozen
    },
}


def configuration(directory: Path, address: str, fsid: str, store: str, settings: Mapping[str, object]) -> str:
    """Return the text of ceph.conf for all daemons, and for the tests' own commands as the admin."""
    values: dict[str, object] = {
        "fsid": fsid,
        "mon_host": address,
        "public_addr": address,
        "cluster_addr": address,
        "auth_cluster_required": "cephx",
        "auth_service_required": "cephx",
        "auth_client_required": "cephx",
        "auth_allow_insecure_global_id_reclaim": "false",
        "osd_objectstore": store,
        **STORES[store],
        "osd_pool_default_size": 1,
        "osd_pool_default_min_size": 1,
        "osd_pool_default_pg_autoscale_mode": "off",
        "osd_crush_chooseleaf_type": 0,
        "mon_allow_pool_size_one": "true",
        "mon_warn_on_pool_no_redundancy": "false",
        "mon_data_avail_warn": 1,  # percent of the disk below it
        "mon_data_avail_crit": 1,
        "mgr_disabled_modules": ",".join(MODULES),
        # Pauses that spare clusters of many daemons: before changes are agreed on, between counts of what is there.
        "paxos_propose_interval": 0.02,
        "paxos_min_wait": 0.01,
        "mgr_stats_period": 1,
        "mgr_tick_period": 1,
        "mon_mgr_digest_period": 1,
        "mon_tick_interval": 1,
        "osd_mon_report_interval": 1,
        "keyring": directory / "keyring",
        "mon_data": directory / "mon",
        "mgr_data": directory / "mgr",
        "osd_data": directory / "osd",
        "run_dir": directory,
        "admin_socket": directory / "$name.asok",
        "log_file": directory / "$name.log",
        "pid_file": "",
        "crash_dir": directory / "crash",
        **settings,
    }
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


def keyring(keys: Mapping[str, str], caps: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text of a keyring that also says what each key may do."""
    lines = []
    for name, key in keys.items():
        lines += [f"[{name}]", f"key = {key}", *(f'caps {daemon} = "{text}"' for daemon, text in caps[name].items())]
    return "\n".join(lines) + "\n"


def key() -> str:
    """Make a key as `ceph-authtool --gen-print-key` does."""
    return base64.b64encode(struct.pack("<hIIh", 1, int(time.time()), 0, 16) + secrets.token_bytes(16)).decode()


def addresses() -> Iterator[str]:
    """Addresses of this machine's loopback on which no monitor listens, and that no other process takes."""
    pid = os.getpid() % (1 << 16)
    for number in itertools.count():
        address = f"127.{64 + number % 64}.{pid >> 8}.{pid & 255 or 1}"
        if all(_free(address, port) for port in PORTS):
            yield address


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Ceph does
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
