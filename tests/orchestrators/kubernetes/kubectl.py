"""The cluster as the tests see it: through kubectl, as its user does."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

DRIVER = "multi.csi.example.com"
LIMIT = 180.0  # seconds until what is asked for has happened, on a machine that does much else
Object = dict[str, Any]
T = TypeVar("T")


class KubectlFailed(AssertionError):
    """kubectl ended with an error; the text is what it printed."""


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, words: list[str], namespace: str) -> None:
        self.words, self.namespace = words, namespace

    def __call__(self, *words: str, given: str = "") -> str:
        """Run kubectl; return what it prints. Raises KubectlFailed."""
        command = [*self.words, "-n", self.namespace, *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(words)}: {done.stderr.strip()[-1500:]}")
        return done.stdout.strip()

    def create(self, *objects: Object) -> None:
        self("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def all(self, kind: str) -> list[Object]:
        found: list[Object] = json.loads(self("get", kind, "-o", "json"))["items"]
        return found

    def delete(self, kind: str, *names: str) -> None:
        """Delete objects, and return when they are gone."""
        self("delete", kind, *names, "--wait=false")
        self.until(f"{kind} {' '.join(names)} gone", lambda: not any(self.exists(kind, name) for name in names))

    def exists(self, kind: str, name: str) -> bool:
        return bool(self("get", kind, name, "--ignore-not-found", "-o", "name"))

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> None:
        self("patch", kind, name, "-p", json.dumps(change))

    def grow(self, claim: str, size: str) -> None:
        """Ask for a size; return when the claim has it, and nothing of the expansion is left to do."""
        self.patch("pvc", claim, {"spec": {"resources": {"requests": {"storage": size}}}})

        def grown() -> bool:
            status = self.get("pvc", claim)["status"]
            return bool(status["capacity"]["storage"] == size and not status.get("conditions"))

        self.until(f"{claim} has {size}", grown)

    def run(self, pod: str, script: str) -> str:
        """Run a shell script in a pod; return what it prints."""
        return self("exec", pod, "--", "sh", "-euc", script)

    def wait_running(self, *pods: str, limit: float = LIMIT) -> None:
        def running() -> bool:
            ready = {one["metadata"]["name"] for one in self.all("pod") if _ready(one)}
            return set(pods) <= ready

        self.until(f"running: {' '.join(pods)}", running, limit)

    def node_of(self, pod: str) -> str:
        return str(self.get("pod", pod)["spec"]["nodeName"])

    def bound(self, claim: str) -> bool:
        return bool(self.get("pvc", claim)["status"].get("phase") == "Bound")

    def volume(self, claim: str) -> Object:
        """Return the PV of a bound claim."""
        return self.get("pv", self.get("pvc", claim)["spec"]["volumeName"])

    def events(self, name: str, reason: str) -> list[str]:
        """Return the texts of the events of an object."""
        about = f"involvedObject.name={name},reason={reason}"
        found = json.loads(self("get", "events", "--field-selector", about, "-o", "json"))["items"]
        return [one["message"] for one in found]

    def until(self, what: str, condition: Callable[[], T], limit: float = LIMIT) -> T:
        """Return the first true value of a condition. Says what has happened in the namespace if there is none."""
        deadline = time.monotonic() + limit
        while not (value := condition()):
            if time.monotonic() > deadline:
                events = self("get", "events", "--sort-by=.lastTimestamp")[-3000:]
                raise AssertionError(f"not within {limit:.0f} s: {what}\n{events}")
            time.sleep(0.3)
        return value


def _ready(pod: Object) -> bool:
    status = pod["status"]
    containers = status.get("containerStatuses", [])
    return bool(status.get("phase") == "Running" and containers and all(one["ready"] for one in containers))
