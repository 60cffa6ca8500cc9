"""The same work done in turn by the driver and by rbd itself."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from csi_multi.rpc.client import Client

from .processes import Unmeasurable
from .rbd_driver import SIZE, volume_request

LIMIT = 120.0  # seconds for a bare command
LABEL = "x" * 300  # as much as the driver writes
CLONE = ("clone", "--rbd-default-clone-format", "2")
Figures = dict[str, list[float]]


class Bare:
    """rbd by hand, as the same user in a namespace of its own."""

    def __init__(self, connection: Sequence[str], place: str) -> None:
        self._connection = tuple(connection)
        self._place = place

    def spec(self, image: str) -> str:
        return f"{self._place}/{image}"

    def run(self, *words: str) -> None:
        command = ("rbd", *self._connection, *words)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
        if done.returncode:
            raise Unmeasurable(f"{' '.join(words)}: {done.returncode}: {done.stderr.decode(errors='replace')}")

    def create(self, name: str) -> None:
        self.run("create", "--size", f"{SIZE}B", self.spec(name))

    def copy(self, origin: str, name: str, cut: str, *, stays: bool = False) -> None:
        """Run the commands of a snapshot, clone or restore, without the checks of the driver."""
        self.run("snap", "create", "--no-progress", self.spec(f"{origin}@{cut}"))
        self.run(*CLONE, self.spec(f"{origin}@{cut}"), self.spec(name))
        if not stays:
            self.run("snap", "rm", "--no-progress", self.spec(f"{origin}@{cut}"))
        self.run("image-meta", "set", self.spec(name), "label", LABEL)


class Rounds:
    """Times both sides. `took` has milliseconds by operation."""

    def __init__(self, client: Client, bare: Bare) -> None:
        self.took: Figures = {}
        self._client = client
        self._bare = bare

    def run(self, rounds: int) -> Figures:
        for round_ in range(-1, rounds):
            if round_ == 0:
                self.took.clear()  # the first one warms up
            self._round(f"round-{round_}", _turned if round_ % 2 else _straight)
        return self.took

    def _round(self, name: str, both: Callable[..., None]) -> None:
        ask, bare, made = self._ask, self._bare, dict[str, str]()

        def restore(which: str) -> None:
            source = {"snapshot": {"snapshot_id": made["cut"]}}
            made[which] = ask(
                which, "CreateVolume", **volume_request(f"{name}-{which}", source=source)
            ).volume.volume_id

        def create() -> None:
            made["volume"] = ask("create", "CreateVolume", **volume_request(name)).volume.volume_id

        def cut() -> None:
            answer = ask("snapshot", "CreateSnapshot", source_volume_id=made["volume"], name=name)
            made["cut"] = answer.snapshot.snapshot_id

        def clone() -> None:
            source = {"volume": {"volume_id": made["volume"]}}
            made["clone"] = ask(
                "clone", "CreateVolume", **volume_request(f"{name}-clone", source=source)
            ).volume.volume_id

        def grow() -> None:
            more = {"required_bytes": 2 * SIZE}
            ask("grow", "ControllerExpandVolume", volume_id=made["clone"], capacity_range=more)

        def by_hand(what: str, *steps: Callable[[], None]) -> Callable[[], None]:
            return lambda: self._timed(f"bare {what}", *steps)

        grown = ("resize", "--no-progress", "--size", f"{2 * SIZE}B", bare.spec(f"{name}-clone"))
        both(create, by_hand("create", lambda: bare.create(name)))
        both(cut, by_hand("snapshot", lambda: bare.copy(name, f"{name}-cut", "cut")))
        both(
            lambda: restore("restore"),
            by_hand("restore", lambda: bare.copy(f"{name}-cut", f"{name}-restored", "base", stays=True)),
        )
        both(clone, by_hand("clone", lambda: bare.copy(name, f"{name}-clone", "again")))
        both(grow, by_hand("grow", lambda: bare.run(*grown)))
        both(
            lambda: ask("delete", "DeleteVolume", volume_id=made["restore"]),
            by_hand("delete", lambda: bare.run("rm", "--no-progress", bare.spec(f"{name}-restored"))),
        )

    def _ask(self, what: str, rpc: str, **fields: Any) -> Any:
        answers: list[Any] = []
        self._timed(what, lambda: answers.append(getattr(self._client, rpc)(**fields)))
        return answers[0]

    def _timed(self, what: str, *steps: Callable[[], None]) -> None:
        began = time.perf_counter()
        for step in steps:
            step()
        self.took.setdefault(what, []).append((time.perf_counter() - began) * 1000)


def at_once(work: Callable[[str], None], names: Sequence[str]) -> float:
    """Call the function for all names in parallel. Return the seconds until the last call ends."""
    with ThreadPoolExecutor(len(names)) as pool:
        began = time.perf_counter()
        list(pool.map(work, names))
        return time.perf_counter() - began


def _straight(*steps: Callable[[], None]) -> None:
    for step in steps:
        step()


def _turned(*steps: Callable[[], None]) -> None:
    _straight(*reversed(steps))
