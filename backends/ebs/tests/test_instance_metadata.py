"""The instance metadata service: its protocol, and the errors when it is absent."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from csi_multi_ebs import instance_metadata
from csi_multi_ebs.config import Config
from csi_multi_ebs.instance_metadata import InstanceMetadata
from csi_multi_ebs.node_identity import Identity

from csi_multi.contract import FailedPrecondition, NodeRecord, StorageError, Unavailable

from .test_node_identity import RECORD

IDENTITY = Identity(instance="i-0123456789abcdef0", zone="eu-west-1b", type="m5.large", zone_id="euw1-az2")
VALUES = {
    "instance-id": IDENTITY.instance,
    "placement/availability-zone": IDENTITY.zone,
    "placement/availability-zone-id": IDENTITY.zone_id,
    "instance-type": IDENTITY.type,
    "network/interfaces/macs/": "02:00:00:00:00:01/\n02:00:00:00:00:02/",
    "block-device-mapping/": "ami\nebs1\nebs2\nephemeral0\nroot",
}


NOWHERE = "http://127.0.0.1:1"
Ask = Callable[[], NodeRecord]


def nobody() -> NodeRecord:
    raise AssertionError("Kubernetes was asked")


def made(endpoint: str, ask: Ask = nobody, metadata: str = "imds") -> InstanceMetadata:
    return InstanceMetadata(Config(region="eu-west-1", metadata=metadata, metadata_endpoint=endpoint), ask)  # type: ignore[arg-type]


class Service(ThreadingHTTPServer):
    """A metadata service: tokens are valid until it is told to end them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.values = dict(VALUES)
        self.tokens: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.failures: list[int] = []  # statuses to answer next
        self.deaf: set[str] = set()  # methods that get no answer
        self.lifetimes: list[str] = []
        self.done = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_PUT(self) -> None:
        service = self.server
        service.lifetimes.append(self.headers["X-aws-ec2-metadata-token-ttl-seconds"])
        token = f"token-{len(service.lifetimes)}"
        service.tokens.add(token)  # before anybody can have read it
        if not self._answers(200 if self.path == "/latest/api/token" else 404, token):
            service.tokens.discard(token)

    def do_GET(self) -> None:
        name = self.path.removeprefix("/latest/meta-data/")
        if self.headers["X-aws-ec2-metadata-token"] not in self.server.tokens:
            self._answers(401, "")
        else:
            self._answers(200 if name in self.server.values else 404, self.server.values.get(name, ""))

    def _answers(self, status: int, text: str) -> bool:
        service = self.server
        service.asked[self.path] += 1
        if self.command in service.deaf:
            service.done.wait(10)
            return False
        status = service.failures.pop(0) if service.failures else status
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
        return status == 200

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.02,))
        thread.start()
        yield service
        service.done.set()
        service.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def nobody_says_what_machine_this_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The kernel's word on the maker of the machine: nothing, unless a test writes it there."""
    monkeypatch.setattr(instance_metadata, "SYS", tmp_path)
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "hypervisor").mkdir()
    return tmp_path / "class/dmi/id/sys_vendor"


@pytest.fixture
def metadata(service: Service) -> InstanceMetadata:
    return made(service.url)


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries come one after the other; an answer that comes has much time, also on a busy machine."""
    monkeypatch.setattr(instance_metadata, "PAUSE", 0.01)
    monkeypatch.setattr(instance_metadata, "TIME_LIMIT", 60)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, without_pause: None) -> Callable[[], None]:
    """impatient() is called when no answer will come any more."""
    return lambda: monkeypatch.setattr(instance_metadata, "TIME_LIMIT", 0.1)


def test_the_instance_is_asked_once_with_one_token_of_six_hours(service: Service, metadata: InstanceMetadata) -> None:
    assert [metadata.identity() for _ in range(3)] == [IDENTITY] * 3
    assert service.lifetimes == ["21600"]
    assert set(service.asked.values()) == {1}


def test_what_is_attached_is_asked_anew_each_time(service: Service, metadata: InstanceMetadata) -> None:
    assert (metadata.interfaces(), metadata.launch_volumes()) == (2, 2)
    service.values["network/interfaces/macs/"] = "02:00:00:00:00:01/"
    service.values["block-device-mapping/"] = "ami\nroot"

    assert (metadata.interfaces(), metadata.launch_volumes()) == (1, 0)
    assert service.lifetimes == ["21600"]


def test_an_instance_that_has_no_such_list_has_one_interface_and_no_volumes(
    service: Service, metadata: InstanceMetadata
) -> None:
    service.values = {name: text for name, text in VALUES.items() if not name.endswith("/")}

    assert (metadata.interfaces(), metadata.launch_volumes()) == (1, 0)
    assert metadata.identity() == IDENTITY


def test_a_token_that_ended_is_renewed(service: Service, metadata: InstanceMetadata) -> None:
    assert metadata.interfaces() == 2
    service.tokens.clear()

    assert metadata.interfaces() == 2
    assert len(service.lifetimes) == 2


def test_a_token_near_its_end_is_renewed_before_it_fails(
    service: Service, metadata: InstanceMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_metadata, "TOKEN_SECONDS", 30)
    for _ in range(2):
        metadata.interfaces()

    assert len(service.lifetimes) >= 2  # a slow machine may need a second try


def test_a_service_that_fails_for_a_moment_is_asked_again(service: Service, metadata: InstanceMetadata) -> None:
    service.failures = [503, 500]

    assert metadata.identity() == IDENTITY


def test_a_service_that_goes_on_failing_is_unavailable_and_asked_again_next_time(
    service: Service, metadata: InstanceMetadata
) -> None:
    service.failures = [503] * instance_metadata.TRIES
    with pytest.raises(Unavailable, match="answered 503"):
        metadata.identity()

    assert metadata.identity() == IDENTITY


def test_a_token_that_never_comes_is_explained_by_the_hop_limit(
    service: Service, metadata: InstanceMetadata, impatient: Callable[[], None]
) -> None:
    service.deaf = {"PUT"}
    impatient()

    with pytest.raises(Unavailable, match="HttpPutResponseHopLimit to 2, or use 'metadata: kubernetes' or 'static'"):
        metadata.identity()
    end = time.monotonic() + 60
    while service.asked["/latest/api/token"] < instance_metadata.TRIES and time.monotonic() < end:
        time.sleep(0.01)  # it may read what it was asked after the question was given up
    assert service.asked["/latest/api/token"] == instance_metadata.TRIES


def test_a_value_that_never_comes_is_no_matter_of_hops(
    service: Service, metadata: InstanceMetadata, impatient: Callable[[], None]
) -> None:
    metadata.interfaces()  # it has its token
    service.deaf = {"GET"}
    impatient()

    with pytest.raises(Unavailable, match="does not answer") as error:
        metadata.identity()
    assert "HopLimit" not in str(error.value)


def test_a_machine_without_the_service_is_told_so() -> None:
    with Service() as service:
        url = service.url
    with pytest.raises(Unavailable, match=r"does not answer .*refused"):
        made(url).identity()


def test_a_service_that_is_switched_off_is_not_asked_again_and_again(
    service: Service, metadata: InstanceMetadata
) -> None:
    service.failures = [403]

    with pytest.raises(FailedPrecondition, match="HttpEndpoint to enabled, or use 'metadata: kubernetes'"):
        metadata.identity()
    assert service.asked.total() == 1


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_no_proxy_is_asked_for_it(service: Service, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    assert made(service.url).identity() == IDENTITY


def test_a_static_instance_asks_nobody() -> None:
    config = Config(
        region="eu-west-1",
        metadata="static",
        metadata_endpoint="http://127.0.0.1:9",
        instance_id=IDENTITY.instance,
        zone=IDENTITY.zone,
        instance_type=IDENTITY.type,
        zone_id=IDENTITY.zone_id,
    )
    metadata = InstanceMetadata(config, nobody)

    assert metadata.identity() == IDENTITY
    assert (metadata.interfaces(), metadata.launch_volumes()) == (1, 0)


def test_a_static_instance_that_is_not_described_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="'metadata: static' needs instance_id and zone"):
        made(NOWHERE, metadata="static").identity()


def test_a_machine_of_another_maker_will_never_be_an_instance(nobody_says_what_machine_this_is: Path) -> None:
    nobody_says_what_machine_this_is.write_text("Dell Inc.\n")
    with pytest.raises(FailedPrecondition, match=r"not an EC2 instance: its vendor is 'Dell Inc\.'"):
        made(NOWHERE).identity()


@pytest.mark.parametrize(("maker", "hypervisor"), [("Amazon EC2", ""), ("Xen", "ec2e1916-9099-7caf-fd21-012345abcdef")])
def test_an_instance_whose_service_is_silent_is_asked_again(
    maker: str, hypervisor: str, nobody_says_what_machine_this_is: Path, tmp_path: Path
) -> None:
    nobody_says_what_machine_this_is.write_text(maker)
    (tmp_path / "hypervisor/uuid").write_text(hypervisor)

    with pytest.raises(Unavailable, match="does not answer"):
        made(NOWHERE).identity()


def test_kubernetes_is_asked_once_and_the_service_never(service: Service) -> None:
    asked: list[NodeRecord] = []

    def ask() -> NodeRecord:
        asked.append(RECORD)
        return RECORD

    metadata = made(service.url, ask, "kubernetes")

    assert [metadata.identity() for _ in range(3)] == [IDENTITY] * 3
    assert (metadata.interfaces(), metadata.launch_volumes()) == (1, 0)
    assert len(asked) == 1
    assert not service.asked


def test_an_answer_of_kubernetes_that_fails_is_asked_for_again() -> None:
    answers: list[StorageError | NodeRecord] = [Unavailable("the API is down"), RECORD]

    def ask() -> NodeRecord:
        if isinstance(answer := answers.pop(0), StorageError):
            raise answer
        return answer

    metadata = made(NOWHERE, ask, "kubernetes")
    with pytest.raises(Unavailable, match="the API is down"):
        metadata.identity()
    assert metadata.identity() == IDENTITY


def test_the_service_comes_first_and_counts_what_is_attached(service: Service) -> None:
    metadata = made(service.url, nobody, "auto")

    assert (metadata.interfaces(), metadata.launch_volumes()) == (2, 2)
    assert metadata.identity() == IDENTITY


@pytest.mark.parametrize("failure", ["silent", "switched off", "not there"])
def test_kubernetes_is_asked_where_the_service_does_not_answer(
    service: Service, failure: str, impatient: Callable[[], None]
) -> None:
    if failure == "silent":
        service.deaf = {"PUT"}
        impatient()
    service.failures = [403] if failure == "switched off" else []
    metadata = made(NOWHERE if failure == "not there" else service.url, lambda: RECORD, "auto")

    assert (metadata.interfaces(), metadata.launch_volumes()) == (1, 0)
    assert metadata.identity() == IDENTITY


@pytest.mark.parametrize("kind", [Unavailable, FailedPrecondition])
def test_where_neither_answers_the_error_has_both_reasons(kind: type[StorageError]) -> None:
    def ask() -> NodeRecord:
        raise kind("the API is down")

    with pytest.raises(kind, match=r"does not answer \(.*; the API is down"):
        made(NOWHERE, ask, "auto").identity()
