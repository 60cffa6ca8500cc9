"""The loop backend beside rawfile-localpv: both have volumes in files, formatted and mounted through loop devices.

Volumes are used one after another: when many are used at once, rawfile-localpv loses some of its loop devices.
"""

from __future__ import annotations

from pathlib import Path

from .cases_peer_node import NODE, both, one_by_one
from .peers import Program
from .table import Row, Target

START = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
import consts
consts.DATA_DIR = sys.argv.pop(1)
import rawfile
rawfile.cli()
"""
# It only reads this file at its start: nothing that is measured asks Kubernetes.
KUBECONFIG = """\
{apiVersion: v1, kind: Config, current-context: none, contexts: [{name: none, context: {cluster: none, user: none}}],
 clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: none, user: {}}]}
"""
TARGETS = {"stage..unstage": Target(limit=0.5), "create": Target(limit=1.5)}


def beside_rawfile(directory: Path, *, program: Program, quick: bool) -> list[Row]:
    """Times of each step of a volume's life."""
    data, kubeconfig = directory / "their-data", directory / "kubeconfig"
    data.mkdir()
    kubeconfig.write_text(KUBECONFIG)
    words = (
        # blkid would give its answer of the last seconds for a device that shows another file by now
        *("env", "BLKID_FILE=/dev/null", f"KUBECONFIG={kubeconfig}", f"CSI_ENDPOINT=unix://{directory}/theirs.sock"),
        *(str(program.path / "venv/bin/python"), "-c", START, str(program.path / "sources"), str(data)),
        *("csi-driver", f"--nodeid={NODE}", "--disable-metrics"),
    )
    place = {"accessibility_requirements": {"preferred": [{"segments": {"hostname": NODE}}]}}
    with both(directory, words, place) as sides:
        return one_by_one(sides, 3 if quick else 40, TARGETS)
