"""Client tokens: a creation that is repeated is done once. moto knows none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .rig_calls import Answer, Call, Refusal
from .rig_moto import Volume, as_it_is, store


@dataclass(frozen=True, slots=True)
class _Used:
    digest: str
    volume: str
    answer: Answer


class Tokens:
    """Every token of a successful creation, by account, region and action."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, str, str, str], _Used] = {}

    def once(self, call: Call, make: Callable[[], tuple[Volume, Answer]]) -> Answer:
        """Make it, or answer with what this token made: as it is now, and when it is gone, as it was then.

        A refused creation does not use its token up.
        """
        token = call.get("ClientToken")
        if not token:
            return make()[1]
        key = (call.account, call.region, call.action, token)
        digest = call.digest(without="ClientToken")
        if used := self._used.get(key):
            return self._again(call, digest, used)
        volume, answer = make()
        self._used[key] = _Used(digest, volume.id, answer)
        return answer

    def volume(self, token: str) -> str:
        """Return the id of the volume that was made with this token. Raises KeyError."""
        return next(used.volume for key, used in self._used.items() if key[-1] == token)

    def _again(self, call: Call, digest: str, used: _Used) -> Answer:
        if used.digest != digest:
            text = f"The client token '{call.get('ClientToken')}' was used with other parameters."
            raise Refusal("IdempotentParameterMismatch", text)
        volume = store(call).volumes.get(used.volume)
        return as_it_is(call, volume) if volume else used.answer
