"""A small server on loopback that speaks what is asked of the Kubernetes API: objects, lists, watches, patches."""

from __future__ import annotations

import json
import queue
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.host.command import LocalHost
from csi_multi.kubernetes.api import KubernetesApi

Object = dict[str, Any]
END = None  # the watch ends in good order


class Cluster:
    """The objects, by path, and what is told to who watches. `conflicts`: patches that find a newer object.

    `token`: the one that is taken, "": any. `refused`: the status of every answer, 0: as asked.
    """

    def __init__(self, url: str, credentials: Path) -> None:
        self.url = url
        self.api = KubernetesApi(url, str(credentials))
        self.token = ""
        self.refused = 0
        self.objects: dict[str, Object] = {}
        self.events: queue.Queue[Object | None] = queue.Queue()
        self.conflicts = 0
        self.patches = 0
        self.version = 1

    def put(self, path: str, **content: Any) -> Object:
        self.version += 1
        name = path.rpartition("/")[2]
        self.objects[path] = {"metadata": {"name": name, "resourceVersion": str(self.version)}, **content}
        return self.objects[path]

    def node(self, name: str, *taints: str, unschedulable: bool = False) -> Object:
        spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints], "unschedulable": unschedulable}
        return self.put(f"/api/v1/nodes/{name}", spec=spec)

    def taints(self, name: str) -> list[str]:
        return [taint["key"] for taint in self.objects[f"/api/v1/nodes/{name}"]["spec"].get("taints", [])]

    def registered(self, name: str, *drivers: str) -> Object:
        spec = {"drivers": [{"name": driver, "nodeID": name} for driver in drivers]}
        return self.put(f"/apis/storage.k8s.io/v1/csinodes/{name}", spec=spec)


class Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if refused := self._refused():
            return self._send({"kind": "Status"}, refused)
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        if "watch" in asked:
            return self._watch()
        if url.path in self.cluster.objects:
            return self._send(self.cluster.objects[url.path])
        items = [one for path, one in sorted(self.cluster.objects.items()) if path.rpartition("/")[0] == url.path]
        if not asked:
            return self._send({"kind": "Status"}, 404)
        start, end = int(asked.get("continue", "0")), int(asked.get("continue", "0")) + 2  # small pages
        more = str(end) if end < len(items) else ""
        return self._send({"metadata": {"resourceVersion": "7", "continue": more}, "items": items[start:end]})

    def _refused(self) -> int:
        wrong = self.cluster.token and self.headers["Authorization"] != f"Bearer {self.cluster.token}"
        return 401 if wrong else self.cluster.refused

    def do_PATCH(self) -> None:
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = self.cluster.objects.get(self.path)
        if found is None:
            return self._send({"kind": "Status"}, 404)
        if self.cluster.conflicts:
            self.cluster.conflicts -= 1
            found["metadata"]["resourceVersion"] += "0"
        if change["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return self._send({"kind": "Status"}, 409)
        self.cluster.patches += 1
        for key, value in change["spec"].items():
            found["spec"].update({key: value}) if value is not None else found["spec"].pop(key)
        return self._send(found)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while (event := self.cluster.events.get()) is not END:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, body: Object, status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_words: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="session")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a pod has token and CA; with the server's own certificate beside them."""
    directory = tmp_path_factory.mktemp("credentials")
    made = CertificateAuthority(directory / "made", LocalHost(), 1).sign("api", "localhost")
    (directory / "ca.crt").write_bytes((made / "ca.pem").read_bytes())
    (directory / "token").write_text("token\n")
    return directory


@pytest.fixture
def cluster(credentials: Path) -> Iterator[Cluster]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials / "made/api/certificate.pem", credentials / "made/api/key.pem")
    handler = type("Own", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made = Cluster(f"https://localhost:{server.server_address[1]}", credentials)
    handler.cluster = made
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.events.put(END)
    server.shutdown()
    server.server_close()
    thread.join()
