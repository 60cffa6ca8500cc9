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
from ..core.locks import LockKey, Locks
from ..loading.admission import SlotPool, running_rpc
from ..loading.backend_proxy import InvalidResponse, UnexpectedError, error_text
from ..logs.redact import SENSITIVE, scrub
from . import sensitive, validate
from .capabilities import AdvertisedCapabilities
from .rules import RULES, LockField, RpcCost, RpcRule
from .status import ForwardedError, code_of

log = logging.getLogger("csi_multi.rpc")
MESSAGE_LIMIT = 2000  # bytes; up to three times as much on the wire, where 8 KiB of metadata are always taken
Method = Callable[[Any, float | None], Any]  # (request, deadline in time.monotonic()) -> response

DEGRADED = "csi-multi-degraded"  # trailing metadata of Probe
REQUEST_ID_KEY = "csi-multi-request-id"  # metadata of an RPC that one driver sends to another
REQUEST_ID: ContextVar[str] = ContextVar("REQUEST", default="")  # the id of the RPC that runs in this thread
REQUEST_ID_PATTERN = re.compile(r"[-0-9A-Za-z]{1,64}")
TrailingMetadata = tuple[tuple[str, str | bytes], ...]


class PeerPolicy:
    """Who may call at all, what every answer of theirs carries, and whether their RPCs get an id. Here: anybody."""

    numbers = False  # give an id to an RPC that came without

    def admit(self, context: grpc.ServicerContext) -> TrailingMetadata:
        """Return trailing metadata for the answer. Raises PermissionDenied."""
        return ()

    def check(self, context: grpc.ServicerContext) -> None:
        """Called with everything in hand, right before the work begins."""


class RequestIdPolicy(PeerPolicy):
    """Anybody, and their RPCs may be sent on: an id ties the two logs together."""

    numbers = True


class RemotePeerPolicy(PeerPolicy):
    """Callers over a network, which may lose them."""

    def check(self, context: grpc.ServicerContext) -> None:
        """Begin nothing for a caller who is gone: by now it may be asking elsewhere."""
        if not context.is_active():
            raise Timeout("the caller went away before the work began")


@dataclass(slots=True)
class SharedRpcState:
    """What all servers of a process share; `workers` is the size of the thread pool they must not let fill up."""

    workers: int
    listeners: Listeners = ()
    locks: Locks = field(default_factory=Locks)
    slots: dict[RpcCost, SlotPool] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = {
            RpcCost.WORKING: SlotPool(max(self.workers * 5 // 8, 1)),
            RpcCost.READING: SlotPool(max(self.workers // 8, 2)),  # one instance that hangs holds half of them
        }


class Interceptor:
    """Wraps service methods.

    `degraded` returns the names of the instances that cannot serve now: Probe stays OK, and names them in
    its trailing metadata. `subject` says what the listeners are told of an RPC. `used` keeps the instances of
    an RPC open when another configuration comes.
    """

    def __init__(
        self,
        advertised: Callable[[], AdvertisedCapabilities],
        traffic: SharedRpcState,
        degraded: Callable[[], Collection[str]] = tuple,
        subject: Callable[[str, Message, Any], Rpc] = lambda name, *_: Rpc(name),
        door: PeerPolicy | None = None,
        used: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._advertised = advertised
        self._degraded = degraded
        self._subject = subject
        self._door = door or PeerPolicy()
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
                _check_response(response)
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
                    _check_response(response)
                    yield response

        return handle

    @contextmanager
    def _watched(
        self, name: str, rule: RpcRule, request: Message, context: grpc.ServicerContext
    ) -> Iterator[float | None]:
        started = time.monotonic()
        token, number = SENSITIVE.set(sensitive.values(request)), REQUEST_ID.set(self._number(context))
        code, text, loud = grpc.StatusCode.OK, "", log.isEnabledFor(rule.level)
        trailing: TrailingMetadata = ()
        if loud:
            fields = {**_request_id_field(), "request": sensitive.visible(request)}
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
            code, text = _code_of(error, rule), scrub(error_text(error)) or type(error).__name__
            trailing += error.trailing if isinstance(error, ForwardedError) else ()
        except GeneratorExit:  # the caller has gone away in the middle of a stream
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException as error:  # even SystemExit: a thread that ends leaves the caller without an answer
            code, text = _code_of_bug(rule), _log_bug(name, error)
        finally:
            if loud or code is not grpc.StatusCode.OK:
                _log_end(name, rule, code, text, started)
            if ended:
                ended(code.name)
            SENSITIVE.reset(token)
            REQUEST_ID.reset(number)
        if trailing:
            context.set_trailing_metadata(trailing)
        if code is not grpc.StatusCode.OK:
            context.abort(code, clip(text))

    def _number(self, context: grpc.ServicerContext) -> str:
        """Return the RPC's id: the caller's, so that it stands in both logs, or a new one where RPCs are sent on."""
        given = next((value for key, value in context.invocation_metadata() or () if key == REQUEST_ID_KEY), "")
        if isinstance(given, str) and REQUEST_ID_PATTERN.fullmatch(given):
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

    def _admit(self, name: str, rule: RpcRule, request: Message, held: ExitStack) -> None:
        if rule.gate and not self._advertised().allows(*rule.gate):
            raise self._advertised().refusal(name, rule.gate[0])
        validate.request(request, rule)
        if slots := self._slots.get(rule.cost):
            if not slots.take():
                raise Unavailable(f"all threads for {rule.cost.value} RPCs are busy; try again")
            held.callback(slots.leave)
            held.enter_context(self._used())
            held.enter_context(running_rpc(name, slots, rule.everywhere))
        if rule.exclusive or rule.shared:
            held.enter_context(
                self._locks.hold(name, _lock_keys(request, rule.exclusive), _lock_keys(request, rule.shared))
            )


def _request_id_field() -> dict[str, str]:
    return {"request_id": number} if (number := REQUEST_ID.get()) else {}


def _lock_keys(request: Message, wanted: tuple[LockField, ...]) -> list[LockKey]:
    keys = []
    for family, path in wanted:
        value: Any = request
        for part in path.split("."):
            value = getattr(value, part)
        keys += [(family, text) for text in ([value] if isinstance(value, str) else value) if text]
    return keys


def _check_response(response: Message) -> None:
    """An answer that breaks CSI's rules is a bug of ours or of a backend, not of the caller."""
    try:
        validate.fields(response)
    except (InvalidArgument, OutOfRange) as error:
        log.error("an answer breaks a rule of CSI", extra={"fields": {"wrong": str(error)}})
        raise InvalidResponse(f"the answer breaks a rule of CSI: {error}") from None


def _code_of(error: StorageError, rule: RpcRule) -> grpc.StatusCode:
    return _code_of_bug(rule) if isinstance(error, InvalidResponse) else code_of(error)


def _code_of_bug(rule: RpcRule) -> grpc.StatusCode:
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


def _log_bug(name: str, error: BaseException) -> str:
    """Log an unexpected error with its traceback; return what the caller may know of it."""
    number = uuid.uuid4().hex[:8]
    trace = "".join(traceback.format_exception(error)).encode(errors="replace").decode()
    facts = error.facts if isinstance(error, UnexpectedError) else {}
    log.error("%s failed unexpectedly", name, extra={"fields": {**facts, "error_id": number, "traceback": trace}})
    return f"internal error {number}: the driver's log has the details"


def _log_end(name: str, rule: RpcRule, code: grpc.StatusCode, text: str, started: float) -> None:
    ms = round((time.monotonic() - started) * 1000, 1)
    fields: dict[str, Any] = {**_request_id_field(), "code": code.name, "ms": ms}
    if text:
        fields["error"] = text
    level = rule.level if code is grpc.StatusCode.OK else max(rule.level, logging.INFO)
    log.log(level, "%s ends", name, extra={"fields": fields})
