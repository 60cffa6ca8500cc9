"""EC2 for the benchmark: the simulation of the ebs backend's tests, in a process of its own."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

ZONE = "eu-west-1a"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTSTESTSTESTS0", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}


@dataclass(frozen=True, slots=True)
class Pace:
    """How long EC2 takes, in seconds: per call, and until a volume is there or attached."""

    name: str
    call: float = 0.0
    state: float = 0.0


class Ec2Process:
    """The process of the simulated EC2."""

    def __init__(self, pipe: Connection, endpoint: str) -> None:
        self._pipe = pipe
        self.endpoint = endpoint

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a process that calls this EC2 and no other."""
        return {**KEYS, "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}

    def begin(self, pace: Pace, instances: int) -> list[str]:
        """Delete everything; return new instances in ZONE."""
        return list(self._request("begin", pace, instances))

    def calls(self) -> dict[str, int]:
        """Return the number of calls since `begin`, by name."""
        return dict(self._request("calls"))

    def _request(self, *words: Any) -> Any:
        self._pipe.send(words)
        return self._pipe.recv()


@contextmanager
def cloud() -> Iterator[Ec2Process]:
    """A simulated EC2 for the block."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Ec2Process(ours, ours.recv())
    finally:
        ours.close()
        process.join(10)
        process.kill()
        process.join()


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe
    os.environ.update(KEYS)
    fake, http = import_module("backends.ebs.tests.fake_ec2"), import_module("backends.ebs.tests.fake_ec2_server")
    ec2_server = http.Ec2Server()
    ec2 = fake.FakeEc2(ec2_server)
    pipe.send(ec2.endpoint)
    try:
        while True:
            match pipe.recv():
                case ("begin", pace, instances):
                    ec2 = fake.FakeEc2(ec2_server)
                    made = ec2.instances(instances, zone=ZONE)
                    ec2.slow("*", pace.call, times=math.inf)
                    ec2.takes.creating = ec2.takes.attaching = fake.seconds(pace.state)
                    pipe.send(made)
                case ("calls",):
                    pipe.send(dict(ec2.calls))
    except EOFError:
        ec2.end()
        ec2_server.close()
