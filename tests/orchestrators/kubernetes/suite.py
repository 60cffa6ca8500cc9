"""Kubernetes' own tests of storage drivers (e2e.test), for what testdriver.yaml says that the loop backend offers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from .archive import Image
from .build import PROGRAMS, TOOLS, build_suite, kubernetes
from .cluster import Cluster
from .images import IMAGES, fill_with_busybox

TESTDRIVER = Path(__file__).with_name("testdriver.yaml")
FOCUS = "External.Storage"
# Features of Windows, SELinux, of alpha releases and of CRDs that the cluster does not have.
WITHOUT = (
    r"\[Feature:(Windows|SELinux|SELinuxMountReadWriteOncePodOnly|volumegroupsnapshot|CSISnapshotMetadata"
    r"|CSIServiceAccountTokenSecrets)|\[Alpha\]"
)
QUICK = r"\[Slow\]|\[Serial\]|\[Disruptive\]"


def archives() -> list[Path]:
    """Return the archives of the images that the suite's pods ask for. Raises BuildError."""
    build_suite()
    names = dict(_names())
    # The suite starts nginx in pods that only have to run.
    return [_archive("busybox", names["BusyBox"], names["Nginx"]), _archive("agnhost", names["Agnhost"])]


def run(cluster: Cluster, *, quick: bool = True, focus: str = FOCUS) -> int:
    """Run the specs that fit; print their counts, and the names of those that failed. Return ginkgo's exit status."""
    report = cluster.directory / "suite"
    report.mkdir()
    words = [
        *(str(PROGRAMS / "ginkgo"), "--procs=4", "--no-color", f"--focus={focus}", "--timeout=24h"),
        f"--skip={f'{WITHOUT}|{QUICK}' if quick else WITHOUT}",
        *(str(PROGRAMS / "e2e.test"), "--", "--provider=local", f"--report-dir={report}", "--num-nodes=1"),
        f"--kubeconfig={cluster.credentials.kubeconfig('admin')}",
        f"--storage.testdriver={TESTDRIVER}",
        *("--allowed-not-ready-nodes=0", "--dump-logs-on-failure=false"),
    ]
    path = f"PATH={PROGRAMS}:{os.environ['PATH']}"
    with (report / "output.txt").open("w") as output:
        inside = cluster.nodes[0].words("env", path, f"TMPDIR={report}", *words)
        status = subprocess.run(inside, stdout=output, stderr=output, check=False).returncode
    _print_results(report)
    return status


def _print_results(report: Path) -> None:
    cases = [case for file in report.glob("junit*.xml") for case in ElementTree.parse(file).iter("testcase")]
    outcomes = [(outcome, case.get("name", "")) for case in cases if (outcome := _outcome(case))]
    for outcome, name in outcomes:
        if outcome not in ("passed", "skipped"):
            print(f"kubernetes: {outcome}: {name}")
    counts = dict(Counter(outcome for outcome, _ in outcomes))
    for reason, count in Counter(filter(None, map(_reason, cases))).most_common():
        print(f"kubernetes: skipped {count}: {reason}")
    print(f"kubernetes: suite: {counts or 'no results'}; output in {report}/output.txt", flush=True)


def _outcome(case: ElementTree.Element) -> str:
    """Return passed, skipped, failed and so on; nothing for what its name has left out, and for setups."""
    skipped = case.find("skipped")
    left_out = skipped is not None and skipped.get("message") == "skipped"
    passed_setup = case.get("status") == "passed" and not case.get("name", "").startswith("[It]")
    return "" if left_out or passed_setup else case.get("status", "")


def _reason(case: ElementTree.Element) -> str:
    """Return why the suite itself has skipped a spec that it was told to run; empty for all others."""
    skipped = case.find("skipped")
    message = "" if skipped is None else skipped.get("message", "")
    return message.removeprefix("skipped - ") if message != "skipped" else ""


def _names() -> list[tuple[str, str]]:
    """Return the images' names as the suite has them."""
    text = (kubernetes() / "test/utils/image/manifest.go").read_text()
    found = re.findall(r'configs\[(\w+)\] = +Config\{list\.PromoterE2eRegistry, "([\w-]+)", "([^"]+)"\}', text)
    return [(key, f"registry.k8s.io/e2e-test-images/{name}:{tag}") for key, name, tag in found]


def _archive(program: str, *names: str) -> Path:
    archive = IMAGES / f"suite-{program}.tar"
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=TOOLS) as directory:
            root = fill_with_busybox(Path(directory))
            if program == "busybox":
                Image(names=names, root=root, command=("sh",)).write(archive)
            else:
                shutil.copy(PROGRAMS / program, root / program)
                Image(names=names, root=root, entrypoint=(f"/{program}",), command=("pause",)).write(archive)
    return archive
