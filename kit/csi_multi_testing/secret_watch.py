"""Looks for the secrets of the kit's requests wherever none may be: answers, errors, log lines, and files.

Every backend that a check connects is watched, so that each error of each call is read, whatever the check is about.
"""

from __future__ import annotations

import base64
import functools
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from csi_multi.contract import FEATURES, TOOLS, Backend, Host

from .assertions import expect
from .storage import Storage
from .storage_contents import small_files

MARKER = "kit-secret-c0ffee-4711"
# One value of a single line, and one that repr and JSON write in another way, as they do with a key in PEM.
MARKED = {"kit-secret": MARKER, "kit-key": f'-----BEGIN KIT KEY-----\n"{MARKER}"\\\n-----END KIT KEY-----\n'}
MAX_PLACES = 3  # in one message
MIN_LENGTH = 6  # characters: a shorter value can occur by chance
METHODS = frozenset(
    name
    for kind in (Backend, *FEATURES, *TOOLS)
    for name, value in vars(kind).items()
    if inspect.isfunction(value) and not name.startswith("_")
)


def revealed(text: str, secrets: Mapping[str, str]) -> str:
    """Return the key of a secret whose value is in the text, also as repr, JSON or base64 write it; "" if none is."""
    for key, value in secrets.items():
        if len(value) >= MIN_LENGTH and any(form in text for form in _forms(value)):
            return key
    return ""


@functools.cache
def _forms(value: str) -> frozenset[str]:
    encoded = base64.b64encode(value.encode()).decode()
    return frozenset((value, repr(value)[1:-1], json.dumps(value)[1:-1], encoded))


def marked(storage: Storage) -> Storage:
    """Return the storage with secrets that it does not use beside its own, and whose backends are watched."""
    if isinstance(storage.connect, SecretWatch):
        return storage
    secrets = {**storage.secrets, **MARKED}
    return replace(storage, secrets=secrets, connect=SecretWatch(storage.connect, secrets))


class SecretWatch(logging.Handler):
    """Storage.connect with a watch of its backends. `found` has one text for each place with a secret."""

    def __init__(self, connect: Callable[[Host], Backend], secrets: Mapping[str, str]) -> None:
        super().__init__(logging.INFO)
        self.found: dict[str, None] = {}
        self._connect = connect
        self._secrets = secrets
        self._kinds: dict[type[Backend], type[Backend]] = {}

    def __call__(self, host: Host) -> Backend:
        backend = self._connect(host)
        kind = type(backend)
        if kind not in self._kinds:
            self._kinds[kind] = _watched_class(kind, self)
        backend.__class__ = self._kinds[kind]
        return backend

    def search(self, text: str, where: str) -> None:
        if key := revealed(text, self._secrets):
            self.found[f"{where} contains the value of secret {key!r}"] = None

    def search_error(self, error: Exception, method: str) -> None:
        self.search(f"{error} {error!r}", f"{method}: the message of {type(error).__name__}")

    def search_files(self, storage: Storage) -> None:
        for file, content in small_files(storage.records).items():
            self.search(content.decode("latin-1"), f"{file}")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.search(logging.Formatter().format(record), f"a log line of {record.name}")
        except Exception:
            self.handleError(record)

    @contextmanager
    def watching_logs(self) -> Iterator[None]:
        """Forget what was found before, and read what is logged in the block, from INFO as in a driver."""
        self.found.clear()
        root = logging.getLogger()
        level = root.level
        root.setLevel(min(level, logging.INFO))
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)
            root.setLevel(level)

    def expect_nothing_found(self) -> None:
        found = "; ".join(list(self.found)[:MAX_PLACES])
        expect(not found, f"{found}; secrets end with the call: not in answers, errors, logs or on the storage")


def watch_of(storage: Storage) -> SecretWatch:
    """Return the watch of a storage that is marked; for another one a watch that has no secrets to look for."""
    return storage.connect if isinstance(storage.connect, SecretWatch) else SecretWatch(storage.connect, {})


def _watched_class(kind: type[Backend], watch: SecretWatch) -> type[Backend]:
    """Return a subclass, without attributes of its own, whose own methods of the contract are watched."""
    inherited: Iterable[Any] = (Backend, *FEATURES, *TOOLS)
    own = {
        name: getattr(kind, name)
        for name in sorted(METHODS)
        if hasattr(kind, name) and not any(getattr(kind, name) is getattr(one, name, None) for one in inherited)
    }
    names = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made: type[Backend] = type(kind.__name__, (kind,), names)
    for name, method in own.items():
        setattr(made, name, _watched(made, name, method, watch))
    return made


def _watched(kind: type[Backend], name: str, method: Callable[..., Any], watch: SecretWatch) -> Callable[..., Any]:
    @functools.wraps(method)
    def watched(self: Backend, *args: Any, **words: Any) -> Any:
        try:
            answer = getattr(super(kind, self), name)(*args, **words)
        except Exception as error:
            watch.search_error(error, name)
            raise
        watch.search(repr(answer), f"{name}: the answer")
        return answer

    return watched
