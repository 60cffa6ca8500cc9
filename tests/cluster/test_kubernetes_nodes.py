"""Nodes from the Kubernetes API, as a small server on loopback speaks it."""

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

from csi_multi.cluster.kubernetes_nodes import KubernetesNodes
from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.config.cluster import KubernetesSection
from csi_multi.contract import Unavailable

END = object()  # the watch ends in good order
CUT = object()  # the connection breaks


def node(name: str, address: str = "", version: int = 1, **labels: str) -> dict[str, Any]:
    addresses = [{"type": "Hostname", "address": name}]
    addresses += [{"type": "InternalIP", "address": address}] if address else []
    metadata = {"name": name, "labels": labels, "resourceVersion": str(version)}
    return {"kind": "Node", "metadata": metadata, "status": {"addresses": addresses, "capacity": {"cpu": "4"}}}


class Api:
    """What the server has, and what it was asked."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.version = 10
        self.token = "first"
        self.asked: queue.Queue[dict[str, str]] = queue.Queue()
        self.events: queue.Queue[Any] = queue.Queue()
        self.page = 0  # objects per page; 0: all

    def tell(self, kind: str, one: dict[str, Any]) -> None:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        self.events.put({"type": kind, "object": one})

    def next(self, **wanted: str) -> dict[str, str]:
        """Wait until it is asked a question with these words, and return it."""
        while True:
            asked = self.asked.get(timeout=10)
            if wanted.items() <= asked.items():
                return asked


class Handler(BaseHTTPRequestHandler):
    api: Api
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.api.asked.put({"path": url.path, **asked})
        if self.headers["Authorization"] != f"Bearer {self.api.token}":
            self._send({"kind": "Status", "code": 401, "status": "Failure"}, 401)
        elif "watch" in asked:
            self._watch()
        else:
            self._list(asked)

    def _list(self, asked: dict[str, str]) -> None:
        names = sorted(self.api.nodes)
        start = int(asked.get("continue", "0"))
        end = start + self.api.page if self.api.page else len(names)
        metadata = {"resourceVersion": str(self.api.version), "continue": str(end) if end < len(names) else ""}
        self._send(
            {"kind": "NodeList", "metadata": metadata, "items": [self.api.nodes[one] for one in names[start:end]]}
        )

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        while (event := self.api.events.get()) not in (END, CUT):
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        if event is END:
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, body: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_words: Any) -> None:
        """Nothing."""


@pytest.fixture
def api(tmp_path: Path, authority: CertificateAuthority) -> Iterator[Api]:
    """A server whose certificate names localhost; token and CA are where a pod has them."""
    tls = authority.sign("api", "localhost")
    (tmp_path / "ca.crt").write_bytes((tls / "ca.pem").read_bytes())
    (tmp_path / "token").write_text("first\n")
    made = Api()
    made.nodes = {"node-1": node("node-1", "10.0.0.1"), "node-2": node("node-2", "fd00::2")}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"api": made}))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "certificate.pem", tls / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.server = f"https://localhost:{server.server_port}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    for _ in range(4):
        made.events.put(END)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def nodes(api: Any, tmp_path: Path) -> Iterator[KubernetesNodes]:
    settings = KubernetesSection(server=api.server, credentials=str(tmp_path), labels="disk=yes")
    made = KubernetesNodes(settings, "d.example.com", retry_intervals=(0.01,))
    yield made
    made.close()


def started(nodes: KubernetesNodes, api: Api) -> KubernetesNodes:
    """Start it, and wait until it watches."""
    nodes.start()
    api.next(watch="1")
    return nodes


def test_before_the_first_list_nothing_can_be_said(nodes: KubernetesNodes) -> None:
    for ask in (nodes.names, lambda: nodes.address("node-1"), lambda: nodes.segments("node-1")):
        with pytest.raises(Unavailable, match="not known yet"):
            ask()  # type: ignore[operator]


def test_nodes_are_listed_with_their_addresses(nodes: KubernetesNodes, api: Api) -> None:
    api.nodes["node-3"] = node("node-3")
    nodes.start()
    asked = api.next(limit="500")
    started_ = api.next(watch="1")

    assert nodes.names() == ["node-1", "node-2", "node-3"]
    assert [nodes.address(name) for name in ("node-1", "node-2", "node-3", "node-4")] == [
        "10.0.0.1:9810",
        "[fd00::2]:9810",
        None,
        None,
    ]
    assert (asked["path"], asked["labelSelector"]) == ("/api/v1/nodes", "disk=yes")
    assert (started_["resourceVersion"], started_["labelSelector"]) == ("10", "disk=yes")


def test_long_lists_come_in_pages(nodes: KubernetesNodes, api: Api) -> None:
    api.page = 1

    assert started(nodes, api).names() == ["node-1", "node-2"]


def test_the_place_of_a_node_is_in_its_labels(nodes: KubernetesNodes, api: Api) -> None:
    api.nodes["node-1"]["metadata"]["labels"] = {
        "d.example.com/zone": "a",
        "d.example.com/node": "node-1",
        "disk": "yes",
    }
    started(nodes, api)

    assert nodes.segments("node-1") == {"zone": "a", "node": "node-1"}
    assert nodes.segments("node-2") is None


def test_changes_are_seen_as_they_come(nodes: KubernetesNodes, api: Api) -> None:
    started(nodes, api)
    api.tell("ADDED", node("node-3", "10.0.0.3"))
    api.tell("MODIFIED", node("node-1", "10.0.9.1"))
    api.tell("DELETED", node("node-2"))
    api.tell("BOOKMARK", {"metadata": {"name": ""}})
    api.events.put(END)
    again = api.next(watch="1")

    assert nodes.names() == ["node-1", "node-3"]
    assert nodes.address("node-1") == "10.0.9.1:9810"
    assert again["resourceVersion"] == "14", "it goes on from what it saw last"


def test_a_cut_connection_goes_on_where_it_was(nodes: KubernetesNodes, api: Api) -> None:
    started(nodes, api)
    api.tell("ADDED", node("node-3", "10.0.0.3"))
    api.events.put(CUT)
    again = api.next()

    assert nodes.names() == ["node-1", "node-2", "node-3"]
    assert again.get("resourceVersion", "10") in ("10", "11")


@pytest.mark.parametrize("code", [410, 500])
def test_an_error_in_a_watch_is_overcome(nodes: KubernetesNodes, api: Api, code: int) -> None:
    started(nodes, api)
    del api.nodes["node-2"]
    api.events.put({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": code}})
    if code == 410:
        api.next(limit="500")
    api.next(watch="1")

    assert nodes.names() == (["node-1"] if code == 410 else ["node-1", "node-2"])


def test_a_rotated_token_is_read_again(nodes: KubernetesNodes, api: Api, tmp_path: Path) -> None:
    started(nodes, api)
    api.token = "second"
    api.events.put(END)
    api.next(watch="1")  # with the old one: refused
    (tmp_path / "token").write_text("second")
    api.tell("ADDED", node("node-3", "10.0.0.3"))
    api.events.put(END)
    while nodes.names() != ["node-1", "node-2", "node-3"]:
        api.next(watch="1")


def test_while_the_api_is_away_what_was_seen_last_stays(nodes: KubernetesNodes, api: Api) -> None:
    started(nodes, api)
    api.token = "nobody's"
    api.events.put(END)
    api.next(watch="1")
    api.next(watch="1")

    assert nodes.names() == ["node-1", "node-2"]


def test_an_api_of_another_authority_is_not_believed(api: Any, tmp_path: Path) -> None:
    from csi_multi.host.command import LocalHost

    other = CertificateAuthority(tmp_path / "other", LocalHost(), days=1)
    (tmp_path / "ca.crt").write_bytes((other.directory / "ca.pem").read_bytes())
    nodes = KubernetesNodes(KubernetesSection(server=api.server, credentials=str(tmp_path)), "d.example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        nodes._list()


def test_closing_does_not_wait_for_the_end_of_a_watch(nodes: KubernetesNodes, api: Api) -> None:
    before = set(threading.enumerate())
    started(nodes, api)
    watcher = next(one for one in set(threading.enumerate()) - before if one.name == "kubernetes-nodes")

    nodes.close()
    watcher.join(10)  # a watch takes a minute

    assert not watcher.is_alive()
