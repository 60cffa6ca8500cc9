"""Commands as one Ceph user: what all of them are told, how long they may take, and their failures as errors.

The user's key is in the instance's keyring file or comes with a request's secrets. It is never a word of a
command: those can be read by everybody on the machine.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any, TypeVar

import msgspec

from csi_multi.contract import InvalidArgument, StorageError, Strings, Unauthenticated

from . import rows
from .config import Config
from .gate import Gate
from .shell import Shell
from .statuses import Full, Refused, Slow, Unreachable, failed, said

log = logging.getLogger(__name__)

T = TypeVar("T")

BRIEF = 10  # seconds

DAY = 86400.0  # seconds: for work that grows with an image
ID, KEY = "userID", "userKey"  # of a request's secrets, as ceph-csi calls them

GROUPS = frozenset({"device", "image-meta", "namespace", "rbd", "snap", "trash"})  # their verb is the second word

_NAME = re.compile(r"[A-Za-z0-9_][-_.@A-Za-z0-9]{0,127}")
_WRONG = "handle_auth_bad_method"
_NO_KEYRING = "no keyring found at"


class Client:
    """Thread-safe. Clients of one cluster share a gate."""

    def __init__(
        self,
        config: Config,
        shell: Shell | None = None,
        gate: Gate | None = None,
        *,
        user: str = "",
        key: tuple[str, ...] = (),
    ) -> None:
        self.config = config
        self.shell = shell or Shell()
        self.gate = gate or Gate()
        self._user = user or config.user
        self._own = not key
        self._key = key or (("--keyring", config.keyring) if config.keyring else ())

    def rbd(self, *words: str, patient: bool = False, partly: bool = False) -> str:
        """Run rbd; return what it printed.

        `patient`: the work grows with the image. `partly`: a list that lacks what is not there any more will do.
        """
        return self.ask("rbd", (*self._connection(), *self._limits()), words, patient=patient, partly=partly)

    def ceph(self, *words: str, brief: bool = False) -> str:
        """Run ceph; return what it printed. `brief`: the manager is asked, and need not be there."""
        limits = ("--connect-timeout", str(self.config.connect_seconds), *self._limits(BRIEF if brief else 3600))
        return self.ask("ceph", (*self._user_words(), *limits), words, alone=brief)

    def device(self, kind: str, verb: str, *words: str) -> str:
        """Run rbd to map a device.

        rbd-nbd is given the same words and keeps them: it would fail reads and writes at the time limits of
        a command, and log for ever. What is slow here may be another client's lock, not the cluster.
        """
        quiet = ("--log-file=/dev/null", "--admin-socket=") if kind == "nbd" else ()
        return self.ask(
            "rbd", (*self._connection(), *quiet), ("device", verb, *words, "--device-type", kind), alone=True
        )

    def local(self, *words: str) -> str:
        """Run rbd where neither a cluster is asked nor a user needed."""
        with self.shell.observe("rbd", _operation(words)):
            answer = self.shell.ask("rbd", "--conf", self.config.conf, *words, timeout=self._limit)
            if answer.status:
                raise failed(_title("rbd", words), answer)
        return answer.stdout

    def ask(
        self,
        program: str,
        common: tuple[str, ...],
        words: tuple[str, ...],
        *,
        patient: bool = False,
        alone: bool = False,
        partly: bool = False,
    ) -> str:
        """Raises the classes of statuses.py, Unreachable at once while the gate is closed.

        `alone`: how long it takes says nothing about other commands.
        """
        way = self.gate.through(self._limit, crowded=not patient and not alone, telling=not alone)
        with way, self.shell.observe(program, _operation(words)):
            limit = DAY if patient else self._limit
            answer = self.shell.ask(program, *common, *words, timeout=limit)
            if (
                answer.status < 0
            ):  # some versions of librados crash at their end, now and then; all commands are repeatable
                log.warning("%s crashed (status %d); it is run again", _title(program, words), answer.status)
                answer = self.shell.ask(program, *common, *words, timeout=limit)
            lacking = partly and answer.status == errno.ENOENT and answer.stdout.strip()
            if answer.status and not lacking:
                raise self._judged(failed(_title(program, words), answer), answer.stderr)
        return answer.stdout

    @contextlib.contextmanager
    def using(self, secrets: Strings) -> Iterator[Client]:
        """Return a client for the user in a request's secrets; without one there, this one. Raises InvalidArgument."""
        user, key = secrets.get(ID, ""), secrets.get(KEY, "").strip()
        if not user and not key:
            yield self
            return
        if not _NAME.fullmatch(user) or user.startswith("client.") or not _is_key(key):
            raise InvalidArgument(
                f"secrets: {ID} has to be a Ceph user, without 'client.', and {KEY} its key, as 'ceph auth get-key' "
                "shows it"
            )
        with in_memory(key.encode()) as path:
            yield Client(self.config, self.shell, self.gate, user=user, key=("--keyfile", path))

    @property
    def _limit(self) -> float:
        """Seconds after which a command is killed: later than it should have given up by itself."""
        return float(self.config.connect_seconds + self.config.command_seconds)

    def _connection(self) -> tuple[str, ...]:
        return *self._user_words(), "--client-mount-timeout", str(self.config.connect_seconds)

    def _user_words(self) -> tuple[str, ...]:
        if not self._key:
            raise Unauthenticated(
                f"no key for the cluster {self.config.fsid}: the instance has no 'keyring', and the request no secrets "
                f"{ID} and {KEY}; name a keyring file, or a Secret in the StorageClass"
            )
        return "--conf", self.config.conf, "-m", ",".join(self.config.monitors), "--id", self._user, *self._key

    def _limits(self, at_most: int = 3600) -> tuple[str, ...]:
        seconds = str(min(self.config.command_seconds, at_most))
        return "--rados-mon-op-timeout", seconds, "--rados-osd-op-timeout", seconds

    def _judged(self, error: StorageError, stderr: str) -> StorageError:
        """Say which cluster is unreachable, and whether that is because of a request's key or a full pool."""
        if isinstance(error, Slow) and (full := self._full()):
            return full
        if _NO_KEYRING in stderr and _WRONG in stderr:
            error = self._unreachable(
                f"the instance's keyring {self.config.keyring} is not here, and the request brought no secrets {ID} "
                f"and {KEY}: mount the file, or name a Secret in the StorageClass (for nodes: node-stage-secret)"
            )
            error.silent = False
        elif isinstance(error, Unreachable):
            refused = _WRONG in stderr
            told = f"the monitors do not accept user client.{self._user} with this key" if refused else said(stderr)
            error = self._unreachable(told)
            error.silent = self._own or not refused
        return error

    def _unreachable(self, told: str) -> Unreachable:
        return Unreachable(f"cluster {self.config.fsid} at {', '.join(self.config.monitors)}: {told}")

    def _full(self) -> Full | None:
        """Look whether the pool is full: then nothing that writes ends, and in a namespace rbd writes to read."""
        words = (*self._user_words(), "--connect-timeout", str(self.config.connect_seconds), *self._limits(BRIEF))
        answer = self.shell.ask("ceph", *words, "osd", "pool", "ls", "detail", "--format", "json", timeout=self._limit)
        if answer.status:
            return None
        told = read("ceph osd pool ls", answer.stdout, lambda told: rows.full(told, self.config.pool))
        if not told:
            return None
        full = Full(f"{told}; nothing can be written to it, nor deleted from it: give it more room, or raise its quota")
        full.silent = bool(self.config.namespace)
        return full


def read(words: str, text: str, reader: Callable[[Any], T]) -> T:
    """Return what a command's JSON says. Raises Refused when it is something else: something may have been done."""
    try:
        return reader(msgspec.json.decode(text))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"{words} said something that is not understood: {error!r}") from None


def _title(program: str, words: tuple[str, ...]) -> str:
    """Return the command for people: its verb and what it is about, without options and texts."""
    return " ".join([program, *takewhile(lambda word: not word.startswith("-"), words[:3])])


def _operation(words: tuple[str, ...]) -> str:
    """Return what a command does, without names: for metrics."""
    return " ".join(words[:2] if words[0] in GROUPS else words[:1])


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) > 12
    except (binascii.Error, ValueError):
        return False


@contextlib.contextmanager
def in_memory(content: bytes) -> Iterator[str]:
    """The path of a file that is on no disk, and gone with this block, or with this process."""
    descriptor = os.memfd_create("rbd", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, content)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)
