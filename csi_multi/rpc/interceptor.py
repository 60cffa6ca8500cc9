"""Around every RPC: refuse what is not advertised, log, validate, lock, map errors.

The only place where a status is set and where locks are taken. It wraps the methods once, at
registration, which costs a call less per RPC than grpc's own interceptor interface.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from ..contract.errors import InvalidArgument, OutOfRange, StorageError, Timeout, Unavailable
from ..contract.observer import RPC_INSTANCE, Ends, Listeners, Rpc
from ..core.locks import Key, Locks
from ..loading.admission import Slots, visiting
from ..loading.backend_proxy import Unexpected, WrongAnswer, said
from ..logs.redact import SENSITIVE, scrub
from . import sensitive, validate
from .capabilities import Advertised
from .rules import RULES, Cost, LockField, Rule
from .status import Answered, code_of

log = logging.getLogger("csi_multi.rpc")
MESSAGE_LIMIT = 2000  # bytes; up to three times as much on the wire, where 8 KiB of metadata are always taken
Method = Callable[[Any, float | None], Any]  # (request, deadline in time.monotonic()) -> response

DEGRADED = "csi-multi-degraded"  # trailing metadata of Probe
REQUEST_ID = "csi-multi-request-id"  # metadata of an RPC that one driver sends to another
REQUEST: ContextVar[str] = ContextVar("REQUEST", default="")  # the id of the RPC that runs in this thread
ID_SHAPE = re.compile(r"[-0-9A-Za-z]{1,64}")
Trailing = tuple[tuple[str, str | bytes], ...]


class Door:
    """Who may call at all, what every answer of theirs carries, and whether their RPCs get an id. Here: anybody."""

    numbers = False  # give an id to an RPC that came without

    def admit(self, context: grpc.ServicerContext) -> Trailing:
        """Return trailing metadata for the answer. Raises PermissionDenied."""
        return ()

    def check(self, context: grpc.ServicerContext) -> None:
        """Called with everything in hand, right before the work begins."""


class NumberingDoor(Door):
    """Anybody, and their RPCs may be sent on: an id ties the two logs together."""

    numbers = True


class RemoteDoor(Door):
    """Callers over a network, which may lose them."""

    def check(self, context: grpc.ServicerContext) -> None:
        """Begin nothing for a caller who is gone: by now it may be asking elsewhere."""
        if not context.is_active():
            raise Timeout("the caller went away before the work began")


@dataclass(slots=True)
class Traffic:
    """What all servers of a process share; `workers` is the size of the thread pool they must not let fill up."""

    workers: int
    listeners: Listeners = ()
    locks: Locks = field(default_factory=Locks)
    slots: dict[Cost, Slots] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = {
            Cost.WORKING: Slots(max(self.workers * 5 // 8, 1)),
            Cost.READING: Slots(max(self.workers // 8, 2)),  # one instance that hangs holds half of them
        }


class Interceptor:
    """Wraps service methods.

    `degraded` returns the names of the instances that cannot serve now: Probe stays OK, and names them in
    its trailing metadata. `subject` says what the listeners are told of an RPC. `used` keeps the instances of
    an RPC open when another configuration comes.
    """

    def __init__(
        self,
        advertised: Callable[[], Advertised],
        traffic: Traffic,
        degraded: Callable[[], Collection[str]] = tuple,
        subject: Callable[[str, Message, Any], Rpc] = lambda name, *_: Rpc(name),
        door: Door | None = None,
        used: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._advertised = advertised
        self._degraded = degraded
        self._subject = subject
        self._door = door or Door()
        self._used = used
        self._listeners = traffic.listeners
        self._locks = traffic.locks
        self._slots = traffic.slots

    def unary(self, name: str, method: Method) -> Callable[[Any, grpc.ServicerContext], Any]:
        """Return the handler of a unary RPC."""
        rule = RULES[name]
        tells = name == "Probe"

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            with self._watched(name, rule, request, context) as deadline:
                response = method(request, deadline)
                _check_answer(response)
                if tells and (names := self._degraded()):
                    context.set_trailing_metadata(((DEGRADED, ",".join(sorted(names))),))
                return response

        return handle

    def streaming(self, name: str, method: Method) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        """Return the handler of a server-streaming RPC; its lock is held to the end of the stream."""
        rule = RULES[name]

        def handle(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._watched(name, rule, request, context) as deadline:
                for response in method(request, deadline):
                    _check_answer(response)
                    yield response

        return handle

    @contextmanager
    def _watched(
        self, name: str, rule: Rule, request: Message, context: grpc.ServicerContext
    ) -> Iterator[float | None]:
        started = time.monotonic()
        token, number = SENSITIVE.set(sensitive.values(request)), REQUEST.set(self._number(context))
        code, text, loud = grpc.StatusCode.OK, "", log.isEnabledFor(rule.level)
        trailing: Trailing = ()
        if loud:
            fields = {**_numbered(), "request": sensitive.visible(request)}
            log.log(rule.level, "%s begins", name, extra={"fields": fields})
        ended = self._begun(name, request, context) if self._listeners else None
        try:
            trailing = self._door.admit(context)
            with ExitStack() as held:
                self._admit(name, rule, request, held)
                self._door.check(context)
                remaining = context.time_remaining()
                yield None if remaining is None else started + remaining
        except StorageError as error:
            code, text = _code(error, rule), scrub(said(error)) or type(error).__name__
            trailing += error.trailing if isinstance(error, Answered) else ()
        except GeneratorExit:  # the caller has gone away in the middle of a stream
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException as error:  # even SystemExit: a thread that ends leaves the caller without an answer
            code, text = _bug(rule), _report(name, error)
        finally:
            if loud or code is not grpc.StatusCode.OK:
                _log_end(name, rule, code, text, started)
            if ended:
                ended(code.name)
            SENSITIVE.reset(token)
            REQUEST.reset(number)
        if trailing:
            context.set_trailing_metadata(trailing)
        if code is not grpc.StatusCode.OK:
            context.abort(code, clip(text))

    def _number(self, context: grpc.ServicerContext) -> str:
        """Return the RPC's id: the caller's, so that it stands in both logs, or a new one where RPCs are sent on."""
        given = next((value for key, value in context.invocation_metadata() or () if key == REQUEST_ID), "")
        if isinstance(given, str) and ID_SHAPE.fullmatch(given):
            return given
        return uuid.uuid4().hex[:12] if self._door.numbers else ""

    def _begun(self, name: str, request: Message, context: grpc.ServicerContext) -> Ends:
        """Tell the listeners that an RPC begins; return what tells them that it ends."""
        rpc = self._subject(name, request, context.invocation_metadata())
        ends = [one.rpc(rpc) for one in self._listeners]
        token = RPC_INSTANCE.set(rpc.instance)

        def end(code: str) -> None:
            RPC_INSTANCE.reset(token)
            for one in reversed(ends):
                one(code)

        return end

    def _admit(self, name: str, rule: Rule, request: Message, held: ExitStack) -> None:
        if rule.gate and not self._advertised().allows(*rule.gate):
            raise self._advertised().refusal(name, rule.gate[0])
        validate.request(request, rule)
        if slots := self._slots.get(rule.cost):
            if not slots.take():
                raise Unavailable(f"all threads for {rule.cost.value} RPCs are busy; try again")
            held.callback(slots.leave)
            held.enter_context(self._used())
            held.enter_context(visiting(name, slots, rule.everywhere))
        if rule.exclusive or rule.shared:
            held.enter_context(self._locks.hold(name, _keys(request, rule.exclusive), _keys(request, rule.shared)))


def _numbered() -> dict[str, str]:
    return {"request_id": number} if (number := REQUEST.get()) else {}


def _keys(request: Message, wanted: tuple[LockField, ...]) -> list[Key]:
    keys = []
    for family, path in wanted:
        value: Any = request
        for part in path.split("."):
            value = getattr(value, part)
        keys += [(family, text) for text in ([value] if isinstance(value, str) else value) if text]
    return keys


def _check_answer(response: Message) -> None:
    """An answer that breaks CSI's rules is a bug of ours or of a backend, not of the caller."""
    try:
        validate.fields(response)
    except (InvalidArgument, OutOfRange) as error:
        log.error("an answer breaks a rule of CSI", extra={"fields": {"wrong": str(error)}})
        raise WrongAnswer(f"the answer breaks a rule of CSI: {error}") from None


def _code(error: StorageError, rule: Rule) -> grpc.StatusCode:
    return _bug(rule) if isinstance(error, WrongAnswer) else code_of(error)


def _bug(rule: Rule) -> grpc.StatusCode:
    """Return the code of a bug. INTERNAL is final: after it the orchestrator forgets what it asked for.

    That is right where nothing can have been made. Where something can, the volume of a claim that is
    deleted after the bug would stay for ever, and be paid for.
    """
    return grpc.StatusCode.UNAVAILABLE if rule.exclusive else grpc.StatusCode.INTERNAL


def clip(text: str) -> str:
    """Shorten a message that would not fit into a trailer: gRPC replaces it, and its code, by its own."""
    if len(text.encode()) <= MESSAGE_LIMIT:
        return text
    return f"{text.encode()[:MESSAGE_LIMIT].decode(errors='ignore')}... (the driver's log has all of it)"


def _report(name: str, error: BaseException) -> str:
    """Log an unexpected error with its traceback; return what the caller may know of it."""
    number = uuid.uuid4().hex[:8]
    trace = "".join(traceback.format_exception(error)).encode(errors="replace").decode()
    facts = error.facts if isinstance(error, Unexpected) else {}
    log.error("%s failed unexpectedly", name, extra={"fields": {**facts, "error_id": number, "traceback": trace}})
    return f"internal error {number}: the driver's log has the details"


def _log_end(name: str, rule: Rule, code: grpc.StatusCode, text: str, started: float) -> None:
    ms = round((time.monotonic() - started) * 1000, 1)
    fields: dict[str, Any] = {**_numbered(), "code": code.name, "ms": ms}
    if text:
        fields["error"] = text
    level = rule.level if code is grpc.StatusCode.OK else max(rule.level, logging.INFO)
    log.log(level, "%s ends", name, extra={"fields": fields})
