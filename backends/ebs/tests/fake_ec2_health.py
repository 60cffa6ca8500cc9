"""What EC2's checks say of volumes and instances: everything is in order, until a test says otherwise."""

from __future__ import annotations

from .fake_ec2_calls import Call


class Checks:
    """Tests change these. `status` is impaired or warning; `io` and `performance` are the results of the two checks."""

    def __init__(self) -> None:
        self.cut_off: set[str] = set()  # instances that do not reach their volumes
        self.page_size = 1000
        self._volumes: dict[str, dict[str, str]] = {}

    def impair(
        self, volume: str, *, status: str = "impaired", io: str = "failed", performance: str = "", event: str = ""
    ) -> None:
        self._volumes[volume] = {"status": status, "io": io, "performance": performance, "event": event}

    def repair(self, volume: str) -> None:
        self._volumes.pop(volume, None)

    # For the rules.

    def status(self, volume: str) -> str:
        return self._volumes.get(volume, {}).get("status", "ok")

    def details(self, volume: str) -> list[dict[str, str]]:
        known = self._volumes.get(volume, {})
        performance = known.get("performance") or "not-applicable"
        io = {"name": "io-enabled", "status": known.get("io") or "passed"}
        return [io, {"name": "io-performance", "status": performance}]

    def events(self, volume: str) -> dict[str, object]:
        if not (event := self._volumes.get(volume, {}).get("event")):
            return {}
        return {"eventsSet": [{"eventType": event, "description": f"{event} is suspected"}]}

    def page(self, call: Call, found: list[str]) -> tuple[list[str], dict[str, str]]:
        """Return the ids on a page, and the token of the next one."""
        first = int(call.get("NextToken") or 0)
        size = min(int(call.get("MaxResults") or self.page_size), self.page_size)
        more = {"nextToken": str(first + size)} if first + size < len(found) else {}
        return found[first : first + size], more
