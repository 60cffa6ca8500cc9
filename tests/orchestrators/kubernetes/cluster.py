"""A Kubernetes of one or more nodes on this machine. The first node also has etcd and the control plane.

    with Cluster(directory, nodes=2) as cluster:
        cluster.start(archives)
        cluster.kubectl("get", "nodes")

Nothing of it is visible outside but cgroups and loop devices, and nothing remains after the end.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import settings
from .build import PROGRAMS
from .credentials import Credentials
from .machine import Machine
from .node import Node, NodeError

LIMIT = 300.0  # seconds for a start, on a machine that does much else


class Cluster:
    """`directory` is emptied at the start, and has all logs until the next one."""

    def __init__(self, directory: Path, *, nodes: int) -> None:
        self.directory = directory
        homes = directory / "nodes"
        self.share = homes / "share/csi-multi"
        self.nodes = [
            Node(f"node-{n}", n, homes / f"node-{n}", cgroup=f"{directory.name}-node-{n}", share=self.share)
            for n in range(1, nodes + 1)
        ]
        self.credentials = Credentials(directory / "credentials")
        self.machine = Machine(directory.with_suffix(".json"), homes)

    def __enter__(self) -> Cluster:
        self.machine.restore()  # before the files go that tell which loop devices are ours
        if self.directory.exists():
            shutil.rmtree(self.directory)
        self.share.mkdir(parents=True)
        self.share.chmod(0o777)  # the controller is not root
        (self.share / ".filer").touch()  # says that this is the share
        self.machine.prepare([node.cgroup for node in self.nodes])
        return self

    def __exit__(self, *_error: object) -> None:
        for node in self.nodes:
            node.stop()
        self.machine.restore()

    def start(self, archives: list[Path]) -> None:
        """Start everything, and wait until all nodes are ready. Raises NodeError."""
        self.credentials.make([node.name for node in self.nodes])
        for node in self.nodes:
            node.start()
        self._connect()
        self._start_control_plane()
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: self._start_node(node, archives), self.nodes))
        for node in self.nodes:
            self._wait(f"node {node.name} registered", lambda node=node: self.kubectl("get", "node", node.name))
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", f"--timeout={LIMIT:.0f}s")

    def start_again(self, node: Node) -> None:
        """Start a node that has ended; it has the directories that it had. Not the first one. Raises NodeError."""
        node.start()
        self._tie(node)
        self._start_node(node, [])

    @property
    def kubectl_words(self) -> list[str]:
        """The words of the command kubectl, as the cluster's administrator."""
        kubeconfig = self.credentials.kubeconfig("admin")
        return self.nodes[0].words("env", f"KUBECONFIG={kubeconfig}", str(PROGRAMS / "kubectl"))

    def kubectl(self, *words: str) -> str:
        """Run kubectl; return what it prints. Raises NodeError."""
        done = subprocess.run([*self.kubectl_words, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NodeError(f"kubectl {' '.join(words)} failed: {done.stderr.strip()[-1000:]}")
        return done.stdout

    def _connect(self) -> None:
        """Tie all nodes to a bridge on the first one; each knows the way to the pods of the others."""
        self.nodes[0].run("ip", "link", "add", "nodes", "type", "bridge")
        for node in self.nodes:
            self._tie(node)

    def _tie(self, node: Node) -> None:
        first = self.nodes[0]
        if node is not first:
            pair = ("type", "veth", "peer", "name", f"to-{node.name}", "netns", str(first.pid))
            subprocess.run(["ip", "link", "add", "nodes", "netns", str(node.pid), *pair], check=True)
            first.run("ip", "link", "set", f"to-{node.name}", "master", "nodes", "up")
        node.run("ip", "address", "add", f"{node.address}/24", "dev", "nodes")
        node.run("ip", "link", "set", "nodes", "up")
        node.run("ip", "route", "add", "default", "dev", "nodes")
        for other in self.nodes:
            if other is not node:
                node.run("ip", "route", "add", f"{other.pods}.0/24", "via", other.address)

    def _start_control_plane(self) -> None:
        first, place = self.nodes[0], self.credentials
        data = f"--data-dir={self.directory}/etcd"
        url = "http://127.0.0.1:2379"
        unsafe = "--unsafe-no-fsync"  # the machine's disk is shared with tests that measure nothing of it
        first.launch(_program("etcd"), data, unsafe, f"--listen-client-urls={url}", f"--advertise-client-urls={url}")
        first.launch(_program("kube-apiserver"), *settings.apiserver(place))
        self._wait("the API server ready", lambda: self.kubectl("get", "--raw", "/readyz"))
        first.launch(
            _program("kube-controller-manager"),
            f"--kubeconfig={place.kubeconfig('controller-manager')}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={place.directory}/sa.key",
            f"--root-ca-file={place.directory}/ca.crt",
            "--leader-elect=false",
        )
        scheduler = f"--kubeconfig={place.kubeconfig('scheduler')}"
        first.launch(_program("kube-scheduler"), scheduler, "--leader-elect=false")

    def _start_node(self, node: Node, archives: list[Path]) -> None:
        path = {"PATH": f"{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        node.launch(_program("containerd"), f"--config={settings.write_containerd(node)}", environment=path)
        self._wait(f"containerd of {node.name}", lambda: node.run(_program("ctr"), "version"))
        for archive in archives:
            node.run(_program("ctr"), "-n", "k8s.io", "images", "import", "--local", str(archive))
        node.launch(
            _program("kubelet"),
            f"--config={settings.write_kubelet(node, self.credentials)}",
            f"--kubeconfig={self.credentials.kubeconfig(f'kubelet-{node.name}')}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            "--root-dir=/var/lib/kubelet",
            "--v=2",
            environment=path,
        )
        node.launch(_program("kube-proxy"), f"--config={settings.write_proxy(node, self.credentials)}")

    def _wait(self, what: str, works: Callable[[], object]) -> None:
        """Return when a call no longer raises. Raises NodeError, also where a program has ended."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                works()
            except NodeError as error:
                ended = next((said for node in self.nodes if (said := node.ended())), "")
                if ended or time.monotonic() > deadline:
                    raise NodeError(f"{what}: {ended or error}") from None
                time.sleep(0.3)
            else:
                return


def _program(name: str) -> str:
    return str(PROGRAMS / name)
