"""The proxy before every contract method of a loaded backend, because a backend is foreign code in this process.

A call from the core counts against the admission limit of the instance (admission.py), and its response is
checked against the contract (response_check.py). An exception that is not in the tree of errors.py becomes an
UnexpectedError that names the instance and its package. Calls that a backend makes on itself are passed on unchecked.
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
from ..contract.errors import AlreadyExists, StorageError, Timeout, Unavailable
from ..contract.model import BlockMap, Extent
from . import response_check
from .admission import RUNNING_RPC, AdmissionLimit

log = logging.getLogger(__name__)

WITHOUT_IO = frozenset({"node_of"})  # methods that only compute, so that a call of them is not counted
# Methods whose success does not show that the storage answers: they compute, read this machine, or answer from a cache.
NO_PROOF = WITHOUT_IO | {
    *("check", "resume", "close", "dry_run", "unsupported", "unmodifiable", "capacity"),
    *("node_fact", "node_segments", "max_volumes", "metrics"),
}


class InvalidResponse(Unavailable):
    """A backend broke its contract.

    Not final: the volume may well have been made, and after a final code the orchestrator would forget it.
    """


class UnexpectedError(Exception):
    """A backend raised an exception outside the tree of errors.py, even one that would end the process: a bug."""

    def __init__(self, text: str, log_fields: dict[str, str]) -> None:
        super().__init__(text)
        self.log_fields = log_fields


class _CallingProxy(threading.local):
    proxy: BackendProxy | None = None  # the proxy whose backend runs in this thread


CALLING = _CallingProxy()


class BackendProxy:
    """The proxy of one instance."""

    def __init__(self, instance: str, kind: str, package: str, unshared: bool) -> None:
        self.admission = AdmissionLimit(instance, unshared)
        self.record: Callable[[bool], None] = lambda _: None  # called with whether the storage answered
        self._owner = f"backend {instance!r} ({package})"
        self._log_fields = {"instance": instance, "kind": kind, "package": package}

    def install(self, backend: Backend) -> None:
        """Replace the contract methods on the object, so that isinstance sees the features of its class as before."""
        setting = getattr(backend, "setting", None)
        owner = (setting.driver, setting.cluster) if setting else None
        for name, function in contract_methods(backend).items():
            method = getattr(backend, name)
            unproxied = getattr(method, "unproxied", method)  # another proxy may have been installed before
            called = _as_contract_calls(function, unproxied, type(backend).contract)
            proxied = self._proxied(name, called, self._response_check(name, function, owner))
            vars(proxied)["unproxied"] = unproxied
            vars(backend)[name] = proxied
            if getattr(backend, name) is not proxied:
                descriptor = type(vars(type(backend)).get(name)).__name__
                raise TypeError(f"a data descriptor ({descriptor}) prevents wrapping the method {name}")

    def _proxied(self, name: str, method: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
        counted, proves = name not in WITHOUT_IO, name not in NO_PROOF

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            caller = CALLING.proxy
            if caller is self:
                return method(*args, **kwargs)
            if counted and (rpc := RUNNING_RPC.get()):
                rpc.enter(self.admission)
            CALLING.proxy = self
            try:
                response = method(*args, **kwargs)
            except StorageError as error:
                if proves and isinstance(error, Unavailable | Timeout):
                    self.record(False)
                if isinstance(error, AlreadyExists) and error.existing is not None:
                    check(error.existing)  # without the arguments: it need not match the request
                raise
            except BaseException as error:  # also SystemExit, KeyboardInterrupt and GeneratorExit: they are not ours
                if proves:
                    self.record(False)
                fields = {**self._log_fields, "method": name}
                raise UnexpectedError(f"{self._owner}: {name} raised {type(error).__name__}", fields) from error
            finally:
                CALLING.proxy = caller
            if proves:
                self.record(True)
            return check(response, *args)

        return call

    def _response_check(
        self, name: str, function: Callable[..., Any], owner: tuple[str, str] | None
    ) -> Callable[..., Any]:
        """Return a function that takes a response and the arguments of its call; it raises InvalidResponse."""
        check, mismatch = response_check.check_of_method(function), response_check.MATCHES_REQUEST.get(name)

        def problem(response: Any, *args: Any) -> str:
            return (
                check(response)
                or (response_check.foreign_stamp(response, *owner) if owner else "")
                or (mismatch(args[0], response) if mismatch and args else "")
            )

        def checked(response: Any, *args: Any) -> Any:
            try:
                if found := problem(response, *args):
                    raise self.invalid_response(name, found)
                if isinstance(response, BlockMap):
                    return replace(response, extents=self._extents(name, response.extents))
                return response
            except InvalidResponse:
                raise
            except BaseException as error:  # reading a response runs foreign code too: a property, a mapping
                raise self.invalid_response(name, f" cannot be read: {type(error).__name__}") from error

        return checked

    def _extents(self, name: str, extents: Iterator[Extent]) -> Iterator[Extent]:
        """Pass every step of the iterator through the proxy: the backend works while its block map is read."""
        advance, check, end = self._proxied(name, next, _unchecked), response_check.check_of_type(Extent), object()
        while (extent := advance(extents, end)) is not end:
            if found := check(extent):
                raise self.invalid_response(name, f".extents: an item{found}")
            yield extent

    def invalid_response(self, name: str, problem: str) -> InvalidResponse:
        """Log what is wrong with a response; return the error for the caller."""
        text = f"{self._owner} returned an invalid response: {name}{problem}"
        log.error(text, extra={"fields": {**self._log_fields, "method": name, "problem": problem.strip()}})
        return InvalidResponse(f"{text}; this is a bug of its package")


def adds_secrets(function: Callable[..., Any]) -> bool:
    """Whether contract 1.1 gave this method of the contract the parameter `secrets`, which has a default then."""
    parameter = inspect.signature(function).parameters.get("secrets")
    return parameter is not None and parameter.default is not parameter.empty


def takes_secrets(method: Callable[..., Any]) -> bool:
    """Whether a method can be called with secrets=...; with **kwargs, if what it wraps (functools.wraps) can."""
    parameters = inspect.signature(method, follow_wrapped=False).parameters
    if "secrets" in parameters:
        return parameters["secrets"].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return False
    wrapped = getattr(method, "__wrapped__", None)
    return wrapped is None or takes_secrets(wrapped)


def _as_contract_calls(
    function: Callable[..., Any], method: Callable[..., Any], contract: tuple[int, int]
) -> Callable[..., Any]:
    """Return the method so that it can be called as contract 1.1 declares it.

    One of contract 1.0 gets no secrets, also where it takes **kwargs: that is a decorator, which passes them on. A
    later one takes them (backend_validation.py).
    """
    if not adds_secrets(function) or contract >= (1, 1):
        return method

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("secrets", None)
        return method(*args, **kwargs)

    return call


def _unchecked(response: Any, *_args: Any) -> Any:
    return response


def contract_methods(backend: Backend | type[Backend]) -> dict[str, Callable[..., Any]]:
    """Return the contract's functions that a backend has, as the contract declares them."""
    cls: type = backend if isinstance(backend, type) else type(backend)
    features: tuple[type[Backend], ...] = (Backend, *FEATURES)
    return {
        name: function
        for feature in features
        if issubclass(cls, feature)
        for name, function in vars(feature).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


def error_text(error: BaseException) -> str:
    """Return the text of an error in a form that every log and wire takes, also where its __str__ fails."""
    try:
        text = str(error)
    except BaseException as broken:
        text = f"{type(error).__name__} (its text cannot be read: {type(broken).__name__})"
    return text.encode(errors="replace").decode()
