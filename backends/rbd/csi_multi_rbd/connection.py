"""Commands as one Ceph user: the options that all of them have, their time limits, and their failures as errors.

The user's key is in the instance's keyring file or comes with a request's secrets. It is never a word of a command,
since every process of the machine can read those.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from csi_multi.contract import (
    CommandTimedOut,
    InvalidArgument,
    Result,
    Setting,
    StorageError,
    Strings,
    Unauthenticated,
)
from csi_multi.host.command import Doubt

from . import resources
from .circuit_breaker import CircuitBreaker
from .command import CommandRunner
from .config import Config
from .errors import ClusterUnreachable, OperationTimedOut, PoolFull, error_for, readable
from .full_pool import LOOK_SECONDS
from .output import documents, parse_json, read

log = logging.getLogger(__name__)

QUICK = 10  # seconds for a command to a manager that need not be running
LONGEST = 3600  # seconds that one operation may take, whatever is configured
DAY = 86400.0  # seconds: for work whose duration grows with an image
ID, KEY = "userID", "userKey"  # of a request's secrets, as ceph-csi names them

GROUPS = frozenset(
    {"device", "group", "image-meta", "namespace", "rbd", "snap", "trash"}
)  # their verb is the second word

_NAME = re.compile(r"[A-Za-z0-9_][-_.@A-Za-z0-9]{0,127}")
_KEY_REJECTED = "handle_auth_bad_method"
_FAILED_LINE = re.compile(r"^Error (E[A-Z]+)\b", re.MULTILINE)  # of one of several questions to ceph
_NO_KEYRING = "no keyring found at"


def keyring_available(config: Config, setting: Setting) -> bool:
    """Return whether this process has the instance's own key.

    Controller and nodes may share one configuration, and nodes may be kept without keys: on a node a configured keyring
    that does not exist counts as none. A controller without it fails at every command. Looked up each time, since the
    file of a Secret may appear later or be removed.
    """
    return bool(config.keyring) and (setting.controller or Path(config.keyring).exists())


class Connection:
    """Runs commands as one user. Thread-safe. Connections to one cluster share a circuit breaker."""

    def __init__(
        self,
        config: Config,
        runner: CommandRunner | None = None,
        breaker: CircuitBreaker | None = None,
        *,
        user: str = "",
        key: tuple[str, ...] = (),
    ) -> None:
        self.config = config
        self.runner = runner or CommandRunner()
        self.breaker = breaker or CircuitBreaker()
        self._user = user or config.user
        self._own_key = not key
        self._key = key or (("--keyring", config.keyring) if config.keyring else ())

    def rbd(self, *words: str, unlimited: bool = False, partial: bool = False) -> str:
        """Run rbd and return its output. `unlimited`: the work grows with the image. `partial`: a list will do without
        images that have just disappeared.
        """
        return self.run("rbd", self.options(), words, unlimited=unlimited, partial=partial)

    def rados(self, *words: str) -> str:
        """Run rados on the objects of the pool and namespace, and return its output."""
        where = ("--pool", self.config.pool, *(("--namespace", self.config.namespace) if self.config.namespace else ()))
        return self.run("rados", (*self.options(), *where), words)

    def ceph(self, *words: str, quick: bool = False) -> str:
        """Run ceph and return its output. `quick`: for the manager, which need not be running."""
        return self.run("ceph", self._monitor_options(QUICK if quick else LONGEST), words, independent=quick)

    def ceph_each(self, *lines: str) -> list[Any]:
        """Run one ceph for several questions without options; return their JSON. Raises the error of one that fails."""
        common, text = (*self._monitor_options(LONGEST), "--format", "json"), "\n".join(lines) + "\n"
        result = self._result("ceph", common, (), named=tuple(lines[0].split()), stdin=text)
        found = read(f"ceph {lines[0]}", result.stdout, documents)
        if len(found) == len(lines):
            return found
        failed = _FAILED_LINE.search(result.stderr)  # the status of ceph is 0 whatever becomes of its questions
        status = getattr(errno, failed[1], 1) if failed else 0
        raise error_for(f"ceph {'; '.join(lines)}", Result(status, "", result.stderr))

    def device(self, kind: str, verb: str, *words: str) -> str:
        """Run rbd to map a device.

        Without the time limits of other commands: rbd-nbd inherits all options and would fail reads and writes at those
        limits, and write logs. How long this takes depends on other clients' locks, not on the cluster.
        """
        no_logs = ("--log-file=/dev/null", "--admin-socket=") if kind == "nbd" else ()
        command = ("device", verb, *words, "--device-type", kind)
        return self.run("rbd", (*self._cluster_options(), *no_logs), command, independent=True)

    def local(self, *words: str) -> str:
        """Run rbd for work that needs neither the cluster nor a user."""
        with self.runner.observe("rbd", _operation(words)):
            result = self.runner.execute("rbd", "--conf", self.config.conf, *words, timeout=self._limit)
            if result.status:
                raise error_for(_title("rbd", words), result)
        return result.stdout

    def run(
        self,
        program: str,
        common: tuple[str, ...],
        words: tuple[str, ...],
        *,
        unlimited: bool = False,
        independent: bool = False,
        partial: bool = False,
    ) -> str:
        """Run a command. `independent`: how long it takes says nothing about other commands.

        Raises the classes of errors.py; ClusterUnreachable at once while the circuit is open.
        """
        return self._result(
            program, common, words, unlimited=unlimited, independent=independent, partial=partial
        ).stdout

    def _result(
        self,
        program: str,
        common: tuple[str, ...],
        words: tuple[str, ...],
        *,
        named: tuple[str, ...] = (),
        stdin: str = "",
        unlimited: bool = False,
        independent: bool = False,
        partial: bool = False,
    ) -> Result:
        """Run a command; `named` are the words that name it where it has none."""
        named = named or words
        allowed = self.breaker.command(self._limit, limited=not unlimited and not independent, timed=not independent)
        with allowed, self.runner.observe(program, _operation(named)):
            writes = program != "ceph" and not unlimited and not independent
            execute = self._execute if writes else self.runner.execute
            arguments, limit = (*common, *words), DAY if unlimited else self._limit
            result = execute(program, *arguments, timeout=limit, stdin=stdin)
            if result.status < 0:  # some versions of librados crash at exit now and then; every command is repeatable
                log.warning("%s crashed (status %d); it is run again", _title(program, named), result.status)
                result = execute(program, *arguments, timeout=limit, stdin=stdin)
            some_missing = partial and result.status == errno.ENOENT and result.stdout.strip()
            if result.status and not some_missing:
                raise self._explained(error_for(_title(program, named), result), result.stderr)
        return result

    def _execute(self, program: str, *words: str, timeout: float, stdin: str) -> Result:
        """Run a command, and kill it when the pool turns out to be full: then it waits for as long as it may."""
        found: list[PoolFull] = []

        def hopeless() -> bool:
            with contextlib.suppress(StorageError):
                found.extend(filter(None, [self._pool_full()]))
            return bool(found)

        doubt = Doubt(after=LOOK_SECONDS, hopeless=hopeless)
        try:
            return self.runner.execute(program, *words, timeout=timeout, stdin=stdin, doubt=doubt)
        except CommandTimedOut:
            if found:
                raise found[0] from None
            raise

    @contextlib.contextmanager
    def as_user(self, secrets: Strings) -> Iterator[Connection]:
        """Yield a connection for the user in a request's secrets; this one if there is none. Raises InvalidArgument."""
        user, key = secrets.get(ID, ""), secrets.get(KEY, "").strip()
        if not user and not key:
            yield self
            return
        if not _NAME.fullmatch(user) or user.startswith("client.") or not _is_key(key):
            raise InvalidArgument(
                f"secrets: {ID} has to be a Ceph user without 'client.', and {KEY} its key, as 'ceph auth get-key' "
                "prints it"
            )
        with memory_file(key.encode()) as path:
            yield Connection(self.config, self.runner, self.breaker, user=user, key=("--keyfile", path))

    @property
    def _limit(self) -> float:
        """Seconds after which a command is killed: more than its own time limits."""
        return float(self.config.connect_seconds + self.config.command_seconds)

    def options(self) -> tuple[str, ...]:
        return *self._cluster_options(), *self._operation_limits()

    def _cluster_options(self) -> tuple[str, ...]:
        return *self._user_options(), "--client-mount-timeout", str(self.config.connect_seconds)

    def _monitor_options(self, at_most: int) -> tuple[str, ...]:
        limits = ("--connect-timeout", str(self.config.connect_seconds), *self._operation_limits(at_most))
        return *self._user_options(), *limits

    def _user_options(self) -> tuple[str, ...]:
        if not self._key:
            raise Unauthenticated(
                f"no key for cluster {self.config.fsid}: the instance has no 'keyring', and the request no secrets "
                f"{ID} and {KEY}; name a keyring file, or a Secret in the StorageClass"
            )
        return "--conf", self.config.conf, "-m", ",".join(self.config.monitors), "--id", self._user, *self._key

    def _operation_limits(self, at_most: int = LONGEST) -> tuple[str, ...]:
        seconds = str(min(self.config.command_seconds, at_most))
        return "--rados-mon-op-timeout", seconds, "--rados-osd-op-timeout", seconds

    def _explained(self, error: StorageError, stderr: str) -> StorageError:
        """Return an error that names the unreachable cluster, or the request's wrong key or the full pool behind it."""
        if isinstance(error, OperationTimedOut) and (full := self._pool_full()):
            return full
        if _NO_KEYRING in stderr and _KEY_REJECTED in stderr:
            error = self._unreachable(
                f"the instance's keyring {self.config.keyring} does not exist here, and the request has no secrets "
                f"{ID} and {KEY}: mount the file, or name a Secret in the StorageClass (for nodes: node-stage-secret)"
            )
            error.silent = False
        elif isinstance(error, ClusterUnreachable):
            rejected = _KEY_REJECTED in stderr
            text = f"the monitors do not accept user client.{self._user} with this key" if rejected else ""
            error = self._unreachable(text or readable(stderr))
            error.silent = self._own_key or not rejected
        return error

    def _unreachable(self, text: str) -> ClusterUnreachable:
        return ClusterUnreachable(f"cluster {self.config.fsid} at {', '.join(self.config.monitors)}: {text}")

    def _pool_full(self) -> PoolFull | None:
        """Return an error if the pool is full: then no write ends, and in a namespace rbd writes in order to read."""
        return self.breaker.full_pool.look(self._look_if_full)

    def _look_if_full(self) -> PoolFull | None:
        words = (*self._monitor_options(QUICK), "osd", "pool", "ls", "detail", "--format", "json")
        result = self.runner.execute("ceph", *words, timeout=self._limit)
        if result.status:
            return None
        reason = parse_json(
            "ceph osd pool ls", result.stdout, lambda data: resources.full_reason(data, self.config.pool)
        )
        if not reason:
            return None
        full = PoolFull(f"{reason}; writes and deletions in it wait: add space to the pool, or raise its quota")
        full.silent = bool(self.config.namespace)
        return full


def _title(program: str, words: tuple[str, ...]) -> str:
    """Return the command for messages: its verb and its object, without options and texts."""
    return " ".join([program, *takewhile(lambda word: not word.startswith("-"), words[:3])])


def _operation(words: tuple[str, ...]) -> str:
    """Return the verb of a command, without names: for metrics."""
    return " ".join(words[:2] if words[0] in GROUPS else words[:1])


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) > 12
    except (binascii.Error, ValueError):
        return False


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file in memory, which disappears with the block or the process."""
    descriptor = os.memfd_create("rbd", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, content)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)
