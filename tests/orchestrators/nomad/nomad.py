"""What an operator does with Nomad: its commands, and its API for what a test waits for."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .agents import Agents
from .jobs import Job
from .network import HUB

ADDRESS = f"http://{HUB}:4646"
LIMIT = 120.0  # seconds for what a test waits for
COMMAND = 300.0  # seconds for one command; some follow a deployment


class NomadFailed(Exception):
    """A command failed; the text is what it printed."""


class Nomad:
    """Commands run in a copy of config/nomad, as its files say."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program, self.directory = program, directory

    def run(self, *words: str, given: str = "") -> str:
        """Run a command; return what it prints. Raises NomadFailed."""
        environment = {"NOMAD_ADDR": ADDRESS, "PATH": "/usr/bin:/bin", "NOMAD_CLI_NO_COLOR": "1"}
        done = subprocess.run(
            [self._program, *words],
            cwd=self.directory,
            env=environment,
            input=given,
            text=True,
            capture_output=True,
            timeout=COMMAND,
            check=False,
        )
        if done.returncode:
            raise NomadFailed(f"nomad {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def job(self, file: str) -> Job:
        """Return a job file as Nomad's own parser reads it."""
        job: Job = json.loads(self.run("job", "run", "-output", file))["Job"]
        return job

    def start(self, job: Job) -> None:
        """Run a job; `allocation` waits for it."""
        self.run("job", "run", "-json", "-detach", "-", given=json.dumps({"Job": job}))

    def api(self, path: str) -> Any:
        """Return what the API has at a path below /v1, None where it has nothing."""
        return self._get(path)[0]

    def until(self, path: str, reached: Callable[[Any], Any], what: str, limit: float = LIMIT) -> Any:
        """Wait until what the API has at a path is as wanted; return it. Nomad answers when it changes."""
        ends, index = time.monotonic() + limit, "0"
        while True:
            found, index = self._get(path, index)
            if reached(found):
                return found
            if time.monotonic() > ends:
                raise AssertionError(
                    f"after {limit:g} s it is not so that {what}: {json.dumps(found, indent=1)[:4000]}"
                )

    def allocation(self, job: str, node: str = "") -> Any:
        """Wait until the one allocation of a job (on a node) runs; return it."""

        def running(found: Any) -> list[Any]:
            failed = [one["TaskStates"] for one in found if one["ClientStatus"] == "failed"]
            assert not failed, f"{job} failed: {json.dumps(failed, indent=1)}"
            return [one for one in found if one["ClientStatus"] == "running" and node in ("", one["NodeName"])]

        (one,) = running(self.until(f"job/{job}/allocations", running, f"{job} runs on {node or 'a node'}"))
        return one

    def stop(self, job: str) -> None:
        """Stop a job, and wait until no allocation of it is left running.

        Without -purge: with it a client forgets the allocation, and what it has failed to unmount stays mounted.
        """
        self.run("job", "stop", "-detach", job)
        ended = ("complete", "failed", "lost")
        self.until(
            f"job/{job}/allocations", lambda found: all(one["ClientStatus"] in ended for one in found), f"{job} ended"
        )

    def released(self, volume: str, agents: Agents) -> None:
        """Wait until no allocation has a claim on a volume, and none has it mounted: Nomad tries again if it fails."""

        def free(found: Any) -> bool:
            mounted = [path for path in agents.mounts() if "/csi/node/" in path and f"/{volume}/" in path]
            return not (found["ReadAllocs"] or found["WriteAllocs"] or mounted)

        self.until(f"volume/csi/{volume}", free, f"{volume} is released and unmounted")

    def _get(self, path: str, index: str = "") -> tuple[Any, str]:
        query = f"?index={index}&wait=2s" if index else ""
        try:
            with urllib.request.urlopen(f"{ADDRESS}/v1/{path}{query}", timeout=30) as answer:
                return json.load(answer), answer.headers.get("X-Nomad-Index", "0")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None, "0"
