"""Installs the driver as docs/deploy.md says: certificates, Secrets, the chart, and what snapshots need beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from .build import snapshot_definitions, snapshotter
from .cluster import Cluster
from .on_node import SHARED, STORAGE
from .versions import PROJECT, SIDECAR_IMAGES

NAMESPACE = "csi-multi"
DEFINITIONS = [
    f"{prefix}{kind}.{group}.storage.k8s.io"
    for prefix, group in (("volume", "snapshot"), ("volumegroup", "groupsnapshot"))
    for kind in ("snapshotclasses", "snapshotcontents", "snapshots")
]
GROUPS = "--feature-gates=CSIVolumeGroupSnapshot=true"
CHART = PROJECT / "config/helm/csi-multi"
LOOP = PROJECT / "config/helm/values/loop.yaml"
LIMIT = "--timeout=300s"


def install(cluster: Cluster) -> list[str]:
    """Install the driver; return the words of the command helm when all pods are ready. Raises NodeError."""
    _prepare_snapshots(cluster)
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
    _create_secrets(cluster)
    helm = subprocess.run([PROJECT / "scripts/helm"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    environment = [f"KUBECONFIG={cluster.credentials.kubeconfig('admin')}", f"HOME={cluster.directory}"]
    given = ["-f", str(LOOP), "-f", str(_write_values(cluster))]
    cluster.nodes[0].run("env", *environment, helm, "install", "csi-multi", str(CHART), "-n", NAMESPACE, *given)
    for name in ("deployment/csi-multi-controller", "daemonset/csi-multi-node"):
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", LIMIT, name)
    return cluster.nodes[0].words("env", *environment, helm)


def _write_values(cluster: Cluster) -> Path:
    """Write what the tests have beside the example.

    Snapshots, groups of them with a backend that cuts them, drains, and a backend of one's own for a shared directory.
    """
    config = yaml.safe_load(LOOP.read_text())["config"]
    more = f"together: {{kind: loop, directory: {STORAGE}/together}}"
    shared = f"{SHARED}: {{kind: filer, directory: {STORAGE}/{SHARED}, take_over: true}}"
    share, own = f"{STORAGE}/{SHARED}", str(_install_own(cluster))
    path = [{"name": "PYTHONPATH", "value": own}]
    volumes = [{"path": place, "source": {"hostPath": {"path": place}}} for place in (share, own)]
    values = {
        "config": f"{config.rstrip()}\n  {more}\n  {shared}\n",
        "controller": {"env": path, "volumes": volumes},
        "node": {"env": path, "hostPaths": [{"path": share}, {"path": own, "readOnly": True}]},
        "sidecars": {"snapshotter": {"enabled": True, "groups": True}},
        "storageClasses": [{"name": name, "parameters": {"backend": name}} for name in ("scratch", "together")],
        "volumeGroupSnapshotClasses": [{"name": "together"}],
        "drain": {"enabled": True},
    }
    file = cluster.directory / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def _install_own(cluster: Cluster) -> Path:
    """Install the example of a backend for networks beside the driver's images; return the directory."""
    directory = cluster.directory / "own"
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    source = PROJECT / "examples/network-backend"
    subprocess.run([sys.executable, *words, f"--target={directory}", str(source)], check=True)
    return directory


def _prepare_snapshots(cluster: Cluster) -> None:
    """Create what a cluster has once for all drivers: the CRDs of snapshots, and the snapshot-controller."""
    parts = (name.partition(".") for name in DEFINITIONS)
    files = [f"{snapshot_definitions()}/{group}_{name}.yaml" for name, _, group in parts]
    cluster.kubectl("create", *(word for file in files for word in ("-f", file)))
    cluster.kubectl("wait", "--for=condition=Established", LIMIT, *(f"crd/{name}" for name in DEFINITIONS))
    objects = snapshotter() / "deploy/kubernetes/snapshot-controller"
    cluster.kubectl("create", "-f", str(objects / "rbac-snapshot-controller.yaml"))
    deployment = yaml.safe_load((objects / "setup-snapshot-controller.yaml").read_text())
    deployment["spec"] |= {"replicas": 1, "minReadySeconds": 0}  # its own are for clusters that live longer
    pod = deployment["spec"]["template"]["spec"]
    for container in pod["containers"]:
        container["image"] = re.sub(
            r".*snapshot-controller:.*", SIDECAR_IMAGES["snapshot-controller"], container["image"]
        )
        container["args"].append(GROUPS)
    file = cluster.directory / "snapshot-controller.yaml"
    file.write_text(yaml.safe_dump(deployment))
    cluster.kubectl("create", "-f", str(file))


def _create_secrets(cluster: Cluster) -> None:
    directory = cluster.directory / "driver-ca"
    program = Path(sys.executable).with_name("csi-multi")
    identity = ("--node", "all", "--node-identity", f"node.{NAMESPACE}")
    words = [str(program), "certificates", "--directory", str(directory), *identity]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    for who, place in (("controller", "controller"), ("node", "nodes/all")):
        files = {"ca.crt": "ca.pem", "tls.crt": "certificate.pem", "tls.key": "key.pem"}
        given = [f"--from-file={key}={directory / place / name}" for key, name in files.items()]
        kind = "--type=kubernetes.io/tls"
        cluster.kubectl("-n", NAMESPACE, "create", "secret", "generic", f"csi-multi-{who}-tls", kind, *given)
