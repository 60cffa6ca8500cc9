"""The objects that the tests create: claims, pods that use them, classes, snapshots."""

from __future__ import annotations

from typing import Any

from .kubectl import DRIVER, Object

CLASS = "scratch"  # of config/helm/values/loop.yaml: a StorageClass and a VolumeSnapshotClass
IMAGE = "docker.io/library/busybox:1.37"
MIB = 1 << 20
GONE = [  # a pod leaves a node that does not answer at once, and not after five minutes
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for what in ("unreachable", "not-ready")
]
SLEEP = "trap 'exit 0' TERM; sleep 1000000000 & wait"


def claim(
    name: str,
    size: str = "64Mi",
    *,
    mode: str = "ReadWriteOnce",
    block: bool = False,
    source: Object | None = None,
    storage_class: str = CLASS,
    labels: dict[str, str] | None = None,
) -> Object:
    spec: Object = {
        "accessModes": [mode],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
        "volumeMode": "Block" if block else "Filesystem",
    }
    if source:
        spec["dataSource"] = source
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def pod(
    name: str,
    of: str | None = None,
    *,
    block: bool = False,
    security: Object | None = None,
    template: Object | None = None,
    node: str | None = None,
    host: str | None = None,
    mounts: dict[str, str] | None = None,
    script: str = SLEEP,
    **spec: Any,
) -> Object:
    """Return a pod that has the claim `of` at /data or /dev/data, or an ephemeral volume after a claim, `template`.

    `mounts` are several claims, by the directory in / where each is. `host` is the node that the scheduler has to
    choose, `node` one that it is not asked about. `spec` is what else the pod's spec has.
    """
    container: Object = {
        "name": "app",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
    }
    volumes = {place: {"persistentVolumeClaim": {"claimName": one}} for place, one in (mounts or {}).items()}
    if template:
        volumes["data"] = {"ephemeral": {"volumeClaimTemplate": {"spec": template["spec"]}}}
    elif not mounts:
        volumes["data"] = {"persistentVolumeClaim": {"claimName": of or name}}
    if block:
        container["volumeDevices"] = [{"name": one, "devicePath": f"/dev/{one}"} for one in volumes]
    else:
        container["volumeMounts"] = [{"name": one, "mountPath": f"/{one}"} for one in volumes]
    spec = {"terminationGracePeriodSeconds": 5} | spec
    spec |= {"containers": [container], "volumes": [{"name": one, **source} for one, source in volumes.items()]}
    spec |= {"securityContext": security} if security else {}
    spec |= {"nodeName": node} if node else {}
    spec |= {"nodeSelector": {"kubernetes.io/hostname": host}} if host else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def stateful(name: str, of_pod: Object) -> Object:
    """Return the StatefulSet that keeps one pod, NAME-0, of this form."""
    template = {"metadata": {"labels": {"app": name}}, "spec": of_pod["spec"]}
    spec = {"serviceName": "", "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def storage_class(name: str, *, binding: str = "Immediate", fs_type: str = "", **parameters: Any) -> Object:
    given = {"backend": CLASS, **parameters} | ({"csi.storage.k8s.io/fstype": fs_type} if fs_type else {})
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": DRIVER,
        "allowVolumeExpansion": True,
        "volumeBindingMode": binding,
        "parameters": given,
    }


def snapshot(name: str, of: str) -> Object:
    spec = {"volumeSnapshotClassName": CLASS, "source": {"persistentVolumeClaimName": of}}
    kind = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def group_snapshot(name: str, of: dict[str, str], group_class: str) -> Object:
    """Return a snapshot of all claims with these labels."""
    spec = {"volumeGroupSnapshotClassName": group_class, "source": {"selector": {"matchLabels": of}}}
    kind = {"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def from_snapshot(name: str) -> Object:
    return {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}


def from_claim(name: str) -> Object:
    return {"kind": "PersistentVolumeClaim", "name": name}
