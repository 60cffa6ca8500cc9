"""Around every contract method of a loaded backend: foreign code in our process.

A call from the core counts against the instance's room (bulkhead.py), its answer is held against the
contract (answers.py), and whatever it raises outside of the tree of errors.py becomes an Unexpected
that names the instance and its package. What a backend calls on itself passes through unseen.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..contract.backend import FEATURES, Backend
from ..contract.errors import StorageError, Unavailable
from ..contract.model import BlockMap, Extent
from . import response_check
from .admission import RUNNING_RPC, AdmissionLimit

log = logging.getLogger(__name__)


class InvalidResponse(Unavailable):
    """A backend broke its contract.

    Not final: the volume may well have been made, and after a final code the orchestrator would forget it.
    """


class UnexpectedError(Exception):
    """A backend raised something that is not in the tree: a bug, of any class, also one that wants to end us."""

    def __init__(self, text: str, facts: dict[str, str]) -> None:
        super().__init__(text)
        self.facts = facts


class Inside(threading.local):
    guard: BackendProxy | None = None  # whose backend runs in this thread


INSIDE = Inside()


class BackendProxy:
    """One instance's."""

    def __init__(self, instance: str, kind: str, package: str, alone: bool) -> None:
        self.room = AdmissionLimit(instance, alone)
        self._owner = f"backend {instance!r} ({package})"
        self._facts = {"instance": instance, "kind": kind, "package": package}

    def install(self, backend: Backend) -> None:
        """Put itself before the methods: on the object, so that isinstance tells the features as before."""
        setting = getattr(backend, "setting", None)
        ours = (setting.driver, setting.cluster) if setting else None
        for name, function in contract_methods(backend).items():
            method = getattr(backend, name)
            bare = getattr(method, "bare", method)  # it may have been guarded before
            guarded = self._guarded(name, bare, self._check(name, function, ours))
            vars(guarded)["bare"] = bare
            vars(backend)[name] = guarded
            if getattr(backend, name) is not guarded:
                raise TypeError(
                    f"{name} is a {type(vars(type(backend)).get(name)).__name__} that hides what is put there"
                )

    def _guarded(self, name: str, method: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*words: Any, **named: Any) -> Any:
            if INSIDE.guard is self:
                return method(*words, **named)
            if visit := RUNNING_RPC.get():
                visit.enter(self.room)
            return check(self._run(name, method, *words, **named), *words)

        return call

    def _run(self, name: str, method: Callable[..., Any], *words: Any, **named: Any) -> Any:
        before, INSIDE.guard = INSIDE.guard, self
        try:
            return method(*words, **named)
        except StorageError:
            raise
        except BaseException as error:  # SystemExit, KeyboardInterrupt and GeneratorExit mean something else to us
            facts = {**self._facts, "method": name}
            raise UnexpectedError(f"{self._owner}: {name} raised {type(error).__name__}", facts) from error
        finally:
            INSIDE.guard = before

    def _check(self, name: str, function: Callable[..., Any], ours: tuple[str, str] | None) -> Callable[..., Any]:
        """Return what is done with an answer to these words: hand it on, or raise WrongAnswer."""
        check, owed = response_check.check_of_method(function), response_check.MATCHES_REQUEST.get(name)

        def checked(answer: Any, *words: Any) -> Any:
            wrong = check(answer)
            if not wrong and ours:
                wrong = response_check.foreign_stamp(answer, *ours)
            if not wrong and owed and words:
                wrong = owed(words[0], answer)
            if wrong:
                raise self.wrong(name, wrong)
            if isinstance(answer, BlockMap):
                return replace(answer, extents=self._extents(name, answer.extents))
            return answer

        def safely(answer: Any, *words: Any) -> Any:
            """Looking at an answer runs foreign code too: a property, a mapping, a time zone."""
            try:
                return checked(answer, *words)
            except InvalidResponse:
                raise
            except BaseException as error:
                raise self.wrong(name, f" cannot be looked at: {type(error).__name__}") from error

        return safely

    def _extents(self, name: str, extents: Iterator[Extent]) -> Iterator[Extent]:
        """Guard every step: the backend works while its map is read."""
        check, end = response_check.check_of_type(Extent), object()
        while (extent := self._run(name, next, extents, end)) is not end:
            if wrong := check(extent):
                raise self.wrong(name, f".extents: one{wrong}")
            yield extent

    def wrong(self, name: str, wrong: str) -> InvalidResponse:
        """Log what is wrong with an answer; return the error for the caller."""
        text = f"{self._owner} gave a wrong answer: {name}{wrong}"
        log.error(text, extra={"fields": {**self._facts, "method": name, "wrong": wrong.strip()}})
        return InvalidResponse(f"{text}; this is a bug of its package")


def contract_methods(backend: Backend | type[Backend]) -> dict[str, Callable[..., Any]]:
    """Return the contract's functions that a backend has, as the contract declares them."""
    cls: type = backend if isinstance(backend, type) else type(backend)
    every: tuple[type[Backend], ...] = (Backend, *FEATURES)
    having = [feature for feature in every if issubclass(cls, feature)]
    return {
        name: function
        for feature in having
        for name, function in vars(feature).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


def error_text(error: BaseException) -> str:
    """Return the text of an error, also of one that cannot say it, in a form that every log and wire takes."""
    try:
        text = str(error)
    except BaseException as broken:
        text = f"{type(error).__name__}, whose text cannot be had: {type(broken).__name__}"
    return text.encode(errors="replace").decode()
