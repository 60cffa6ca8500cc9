"""A driver process with every hostile package and a good one, and its stop while the hostile ones hang."""

from __future__ import annotations

import json
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.process.driver_process import DriverProcess

pytestmark = pytest.mark.slow

Code = grpc.StatusCode
HEAD = """\
import time
from dataclasses import replace
from csi_multi.contract import backend as b, errors, model
from csi_multi_testing.memory import MemoryBackend
"""
PATIENCE = """\
from csi_multi.loading import admission, loader, registry
from csi_multi.process import serve
admission.HANGING_AFTER = loader.IMPORT_LIMIT = loader.CONSTRUCTOR_LIMIT = 1.0
registry.CHECK_LIMIT = registry.CLOSE_LIMIT = serve.DRAIN_LIMIT = 1.0
"""
OWN = HEAD + "class Own(MemoryBackend):\n"
GOOD = OWN + "    pass"

# Packages that are broken before they serve: source, and the message about each.
BROKEN = {
    "absent": ("import absent_module_of_nobody", "cannot be imported: ModuleNotFoundError"),
    "endless": ("import time; time.sleep(600)", "its import did not return within 1 s"),
    "future": (OWN + "    contract = (9, 0)", "was written for contract (9, 0)"),
    "half": (
        HEAD + "class Own(MemoryBackend, b.NodeLocal): ...",
        "lacks node_of; a feature must be implemented completely",
    ),
    "unborn": (
        OWN + "    def __init__(self, *words): time.sleep(600)",
        "the constructor of 'unborn' did not return within",
    ),
    "quitter": (
        OWN + "    def __init__(self, *words): raise SystemExit(1)",
        "its constructor raised CallExited: SystemExit",
    ),
}
# Packages that break when they are used: source of create_volume, and the error of its caller.
CREATE = OWN + "    def create_volume(self, request):\n        "
WRONG = {
    "raises": (CREATE + "raise KeyError('k')", Code.UNAVAILABLE, "internal error"),
    "exits": (CREATE + "raise SystemExit(1)", Code.UNAVAILABLE, "internal error"),
    "types": (CREATE + "return {'handle': 'v'}", Code.UNAVAILABLE, "create_volume is a dict, not a Volume"),
    "handle": (
        CREATE + "return replace(super().create_volume(request), handle='h' * 200)",
        Code.UNAVAILABLE,
        "create_volume.handle has 200 bytes; at most 107 are allowed",
    ),
}
HANGS = CREATE + "time.sleep(600)\n    def check(self): time.sleep(600)\n    def close(self): time.sleep(600)"
LONG = OWN + textwrap.indent(
    """\
def list_volumes(self, page):
    stamp = model.Stamp(driver=self.setting.driver, cluster=self.setting.cluster, name="n", digest="d")
    start = int(page.cursor or 0)
    end = min(start + page.limit, 100_000)
    items = tuple(model.Volume(handle=f"{n:043}", size=1 << 30, stamp=stamp) for n in range(start, end))
    return model.Page(items=items, cursor=str(end) if end < 100_000 else "")
""",
    "    ",
)
Packages = dict[str, str]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., DriverProcess]]:
    """drive({kind: source}) is a driver with these packages, and one instance of each kind."""
    made: list[DriverProcess] = []
    site = tmp_path / "site"

    def driver(packages: Packages, twice: tuple[str, ...] = (), unused: tuple[str, ...] = ()) -> DriverProcess:
        site.mkdir()
        (site / "sitecustomize.py").write_text(PATIENCE)
        for number, (kind, source) in enumerate([*packages.items(), *((kind, GOOD) for kind in twice)]):
            name = f"csi_hostile_{kind}_{number}"
            (site / f"{name}.py").write_text(source)
            facts = site / f"{name}-2.5.dist-info"
            facts.mkdir()
            (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
            (facts / "entry_points.txt").write_text(f"[csi_multi.backends]\n{kind} = {name}:Own\n")
        lines = ["driver: {name: hostile.csi-multi.example, node: n1, alpha: true, workers: 16}", "backends:"]
        lines += [f"  {kind}: {{kind: {kind}}}" for kind in packages if kind not in unused]
        environment = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        made.append(DriverProcess(tmp_path, "\n".join(lines), environment=environment))
        return made[-1]

    yield driver
    for one in made:
        if hasattr(one, "process") and one.process.poll() is None:
            one.kill()


def degraded(driver: DriverProcess) -> set[str]:
    """Return the instances that Probe names."""
    with grpc.insecure_channel(f"unix:{driver.socket}") as channel:
        _, call = channel.unary_unary("/csi.v1.Identity/Probe").with_call(b"", timeout=5)
    return set(dict(call.trailing_metadata())["csi-multi-degraded"].split(","))


def logged(driver: DriverProcess, level: str = "error") -> list[dict[str, Any]]:
    lines = (line for line in driver.log.read_text().splitlines() if line.startswith("{"))
    return [row for row in map(json.loads, lines) if row["level"] == level]


def test_with_every_hostile_package_at_once_the_good_one_serves_and_each_of_the_others_is_named(
    drive: Any, wanted: Any, refused: Any, serves: Any
) -> None:
    packages = {kind: row[0] for kind, row in (*BROKEN.items(), *WRONG.items())}
    driver = drive({**packages, "hangs": HANGS, "long": LONG, "good": GOOD, "twin": GOOD}, ("twin",), ("twin",))
    client = driver.start()
    serves(client)

    for kind, (_, words) in BROKEN.items():
        refusal = refused(client.CreateVolume, **wanted("v", kind))
        assert (refusal.code, words in refusal.text) == (Code.UNAVAILABLE, True), refusal.text
        assert any(words in line["message"] and kind in line["message"] for line in logged(driver))
    for kind, (_, code, words) in WRONG.items():
        refusal = refused(client.CreateVolume, **wanted("v", kind))
        assert (refusal.code, words in refusal.text) == (code, True), refusal.text
        (line,) = [line for line in logged(driver) if line.get("instance") == kind]
        assert line["package"].startswith(f"csi_hostile_{kind}_")
        assert line["package"].endswith(" 2.5")
    serves(client)

    with ThreadPoolExecutor(10) as pool:
        for number in range(10):
            pool.submit(refused, lambda n: client.CreateVolume(**wanted(f"v{n}", "hangs"), timeout=4), number)
        time.sleep(0.5)
        refusal = refused(client.CreateVolume, **wanted("more", "hangs"))
        assert (refusal.code, "the oldest of them CreateVolume for" in refusal.text) == (Code.UNAVAILABLE, True)
        serves(client)

    assert "no complete list is possible" in refused(client.ListVolumes).text
    assert degraded(driver) == {*BROKEN, "hangs"}
    serves(client)
    client.close()
    driver.kill()


def test_100_000_volumes_are_listed_by_a_process(drive: Any, serves: Any) -> None:
    driver = drive({"long": LONG, "good": GOOD})
    client = driver.start()
    token, count = "", 0
    while True:
        page = client.ListVolumes(starting_token=token)
        assert page.ByteSize() < 4 << 20
        count, token = count + len(page.entries), page.next_token
        if not token:
            break

    assert count == 100_000
    serves(client)
    client.close()
    assert driver.stop() == 0


def test_a_name_that_two_packages_claim_ends_the_start_with_both(drive: Any) -> None:
    driver = drive({"twin": GOOD, "good": GOOD}, ("twin",))
    driver.launch()

    assert driver.process.wait(timeout=20) == 2
    assert "csi_hostile_twin_0" in driver.log_tail()
    assert "csi_hostile_twin_2; remove one of them" in driver.log_tail()


def test_the_process_ends_soon_although_close_hangs(drive: Any) -> None:
    driver = drive({"hangs": HANGS, "good": GOOD})
    client = driver.start()
    client.Probe()
    client.close()
    began = time.monotonic()

    assert driver.stop() == 0
    assert time.monotonic() - began < 10
    assert [line["message"] for line in logged(driver)] == [
        "backend hangs: close did not return within 1 s; the driver stops without it"
    ]


def test_the_process_ends_soon_although_a_call_hangs_and_says_which(drive: Any, wanted: Any) -> None:
    driver = drive({"hangs": HANGS, "good": GOOD})
    client = driver.start()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.CreateVolume, **wanted("v", "hangs"))
        time.sleep(0.5)
        began = time.monotonic()
        driver.process.send_signal(signal.SIGTERM)
        code = driver.process.wait(timeout=20)
        with pytest.raises(grpc.RpcError):
            call.result(5)

    assert code == 1, "the driver did not end cleanly"
    assert time.monotonic() - began < 15
    assert "stopped while these RPCs still run: CreateVolume for" in logged(driver)[-1]["message"]
    assert "in backend hangs" in logged(driver)[-1]["message"]
    assert not driver.socket.exists()
    client.close()
