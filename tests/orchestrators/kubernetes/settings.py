"""The arguments and configuration files of a node's programs: containerd, kubelet, kube-proxy, the pods' network."""

from __future__ import annotations

import json
from pathlib import Path

from .credentials import Credentials
from .images import PAUSE
from .node import Node

SOCKET = "/run/containerd/containerd.sock"
CONTAINERD = """\
version = 3
root = "{home}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true  # a machine without CAP_SYS_RESOURCE cannot lower it
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{home}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def write_containerd(node: Node) -> Path:
    """Write containerd's configuration and the pods' network; return the file of the first."""
    file = node.home / "containerd.toml"
    file.write_text(CONTAINERD.format(home=node.home, socket=SOCKET, pause=PAUSE))
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-pods",
        "ranges": [[{"subnet": f"{node.pods}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    (node.home / "cni").mkdir(exist_ok=True)
    _write(node.home / "cni/10-pods.conflist", cniVersion="1.0.0", name="pods", plugins=[bridge, ports])
    return file


def write_kubelet(node: Node, credentials: Credentials) -> Path:
    """Write the kubelet's configuration; return its file. How full the machine's disk is does not matter to it."""
    (node.home / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    return _write(
        node.home / "kubelet.yaml",
        apiVersion="kubelet.config.k8s.io/v1beta1",
        kind="KubeletConfiguration",
        failCgroupV1=False,
        failSwapOn=False,
        cgroupDriver="cgroupfs",
        cgroupRoot=f"/{node.cgroup}",
        containerRuntimeEndpoint=f"unix://{SOCKET}",
        authentication={
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(credentials.directory / "ca.crt")},
        },
        authorization={"mode": "Webhook"},
        resolvConf=str(node.home / "resolv.conf"),
        maxPods=250,
        syncFrequency="5s",  # a volume that has grown is noticed then; a minute is the default
        evictionHard={"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        imageGCHighThresholdPercent=100,
        imageGCLowThresholdPercent=99,
        volumePluginDir=str(node.home / "kubelet-plugins"),
        podLogsDir="/var/log/pods",
        oomScoreAdj=0,
    )


def write_proxy(node: Node, credentials: Credentials) -> Path:
    return _write(
        node.home / "proxy.yaml",
        apiVersion="kubeproxy.config.k8s.io/v1alpha1",
        kind="KubeProxyConfiguration",
        mode="iptables",
        hostnameOverride=node.name,
        oomScoreAdj=0,
        clientConnection={"kubeconfig": str(credentials.kubeconfig(f"proxy-{node.name}"))},
        conntrack={"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    )


def apiserver(credentials: Credentials) -> list[str]:
    """Return the API server's arguments. etcd is on the same node."""
    place = credentials.directory
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--advertise-address=10.10.0.1",
        f"--tls-cert-file={place}/apiserver.crt",
        f"--tls-private-key-file={place}/apiserver.key",
        f"--client-ca-file={place}/ca.crt",
        f"--token-auth-file={place}/tokens.csv",
        f"--service-account-key-file={place}/sa.pub",
        f"--service-account-signing-key-file={place}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--kubelet-client-certificate={place}/kubelet-client.crt",
        f"--kubelet-client-key={place}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--event-ttl=3h",
    ]


def _write(file: Path, **fields: object) -> Path:
    file.write_text(json.dumps(fields, indent=1))
    return file
