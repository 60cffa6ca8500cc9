"""Around every RPC: refuse what is not advertised, validate, lock, log, and turn errors into a status.

The only place where a status is set and where locks are taken. It wraps the methods once, at
registration, which takes one call less per RPC than grpc's own interceptor interface.
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

from ..contract.errors import InvalidArgument, OutOfRange, StorageError
from ..contract.observer import RPC_INSTANCE, EndCallback, Listeners, Rpc
from ..core.locks import LockKey, Locks
from ..loading.admission import SlotPool, running_rpc
from ..loading.backend_proxy import InvalidResponse, UnexpectedError, error_text
from ..logs.redact import SENSITIVE, scrub
from . import sensitive, validate
from .capabilities import AdvertisedCapabilities
from .peers import PeerPolicy, TrailingMetadata
from .receive import MessageReader
from .rules import RULES, LockField, RpcCost, RpcRule
from .status import ForwardedError, code_of

log = logging.getLogger("csi_multi.rpc")
MESSAGE_LIMIT = 2000  # bytes; escaped it may take three times as much, and gRPC accepts 8 KiB of metadata
PLACES = 256  # each takes a thread, 14 KiB of memory. External-provisioner alone sends 100 RPCs at once
Method = Callable[[Any, float | None], Any]  # (request, deadline in time.monotonic()) -> response

DEGRADED = "csi-multi-degraded"  # trailing metadata of Probe
REQUEST_ID_KEY = "csi-multi-request-id"  # metadata of an RPC that one driver forwards to another
REQUEST_ID: ContextVar[str] = ContextVar("REQUEST", default="")  # the id of the RPC that runs in this thread
# Of a stream that runs in this thread: calls a function, from another thread, once its caller is gone or it has ended.
# Returns False when that is so already.
WHEN_CALLER_IS_GONE: ContextVar[Callable[[Callable[[], object]], bool]] = ContextVar(
    "WHEN_CALLER_IS_GONE", default=lambda _: True
)
REQUEST_ID_PATTERN = re.compile(r"[-0-9A-Za-z]{1,64}")


@dataclass(slots=True)
class SharedRpcState:
    """What all servers of a process share: locks, slots, listeners. `workers` is how many RPCs may run at once."""

    workers: int
    listeners: Listeners = ()
    locks: Locks = field(default_factory=Locks)
    slots: dict[RpcCost, SlotPool] = field(init=False)

    def __post_init__(self) -> None:
        working = max(self.workers * 5 // 8, 1)
        reading = max(self.workers - working, 2)
        self.slots = {
            RpcCost.WORKING: SlotPool(working, self._places, RpcCost.WORKING.value),
            RpcCost.READING: SlotPool(reading, self._places, RpcCost.READING.value),
        }

    @property
    def _places(self) -> int:
        """How many RPCs of one cost may wait. An instance that hangs may use half of them."""
        return min(self.workers * 3, PLACES)

    @property
    def threads(self) -> int:
        """How many threads are enough for the RPCs that run, for all that wait because of instances that hang, and
        for as many as may run that wait for a moment.
        """
        return self.workers * 2 + self._places

    @property
    def busy(self) -> bool:
        """Whether an RPC runs, or waits for a slot."""
        return any(slots.waiting or slots.free < slots.total for slots in self.slots.values())


class Interceptor:
    """Wraps service methods.

    `degraded` returns the names of the instances that cannot serve now; Probe stays OK and names them in
    its trailing metadata. `label` returns what the listeners learn about an RPC. `keep_open` keeps the instances of
    an RPC open while a reload replaces them.
    """

    def __init__(
        self,
        advertised: Callable[[], AdvertisedCapabilities],
        shared: SharedRpcState,
        degraded: Callable[[], Collection[str]] = tuple,
        label: Callable[[str, Message, Any], Rpc] = lambda name, *_: Rpc(name),
        peer_policy: PeerPolicy | None = None,
        reader: MessageReader | None = None,
        keep_open: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._advertised = advertised
        self._degraded = degraded
        self._label = label
        self._peer_policy = peer_policy or PeerPolicy()
        self._reader = reader or MessageReader(shared.threads)
        self._keep_open = keep_open
        self._listeners = shared.listeners
        self._locks = shared.locks
        self._slots = shared.slots

    def unary(
        self, name: str, method: Method, request_class: type[Message]
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], Any]:
        """Return the handler of a unary RPC."""
        rule = RULES[name]
        is_probe = name == "Probe"

        def handle(messages: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            request = self._request(rule, request_class, messages, context)
            with self._intercepted(name, rule, request, context) as deadline:
                response = method(request, deadline)
                _check_response(response)
                if is_probe and (names := self._degraded()):
                    context.set_trailing_metadata(((DEGRADED, ",".join(sorted(names))),))
                return response

        return handle

    def streaming(
        self, name: str, method: Method, request_class: type[Message]
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[Any]]:
        """Return the handler of a server-streaming RPC, whose locks are held to the end of the stream."""
        rule = RULES[name]

        def handle(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            request = self._request(rule, request_class, messages, context)
            with self._intercepted(name, rule, request, context) as deadline:
                token = WHEN_CALLER_IS_GONE.set(context.add_callback)
                try:
                    for response in method(request, deadline):
                        _check_response(response)
                        yield response
                finally:
                    WHEN_CALLER_IS_GONE.reset(token)

        return handle

    def _request(
        self, rule: RpcRule, request_class: type[Message], messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> Message:
        """Return the request. It is not waited for from a peer that may not call, nor where it has no fields."""
        if rule.cost is RpcCost.INSTANT:
            return request_class()
        try:
            self._peer_policy.admit(context)
        except StorageError:
            return request_class()  # _intercepted refuses it again
        return self._reader.read(request_class, messages, context)

    @contextmanager
    def _intercepted(
        self, name: str, rule: RpcRule, request: Message, context: grpc.ServicerContext
    ) -> Iterator[float | None]:
        """Run one RPC in the block: admitted, logged, its errors turned into a status. Gives its deadline."""
        started = time.monotonic()
        secrets, request_id = SENSITIVE.set(sensitive.values(request)), REQUEST_ID.set(self._request_id(context))
        code, text, logged = grpc.StatusCode.OK, "", log.isEnabledFor(rule.level)
        trailing: TrailingMetadata = ()
        if logged:
            fields = {**_request_id_field(), "request": sensitive.visible(request)}
            log.log(rule.level, "%s begins", name, extra={"fields": fields})
        end = self._observe(name, request, context) if self._listeners else None
        try:
            trailing = self._peer_policy.admit(context)
            with ExitStack() as held:
                remaining = context.time_remaining()
                deadline = None if remaining is None else started + remaining
                self._admit(name, rule, request, deadline, held)
                self._peer_policy.check_caller(context)
                yield deadline
        except StorageError as error:
            code, text = _code_of(error, name, rule), scrub(error_text(error)) or type(error).__name__
            trailing += error.trailing if isinstance(error, ForwardedError) else ()
        except GeneratorExit:  # the caller disconnected in the middle of a stream
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException as error:  # also SystemExit: a thread that ends leaves the caller without a response
            code, text = _code_of_bug(rule), _log_bug(name, error)
        finally:
            if logged or code is not grpc.StatusCode.OK:
                _log_end(name, rule, code, text, started)
            if end:
                end(code.name)
            SENSITIVE.reset(secrets)
            REQUEST_ID.reset(request_id)
        if trailing:
            context.set_trailing_metadata(trailing)
        if code is not grpc.StatusCode.OK:
            context.abort(code, clip(text))

    def _request_id(self, context: grpc.ServicerContext) -> str:
        """Return the RPC's id: the caller's, so that both logs have the same, or a new one where RPCs are forwarded."""
        given = next((value for key, value in context.invocation_metadata() or () if key == REQUEST_ID_KEY), "")
        if isinstance(given, str) and REQUEST_ID_PATTERN.fullmatch(given):
            return given
        return uuid.uuid4().hex[:12] if self._peer_policy.assigns_request_ids else ""

    def _observe(self, name: str, request: Message, context: grpc.ServicerContext) -> EndCallback:
        """Report the beginning of an RPC to the listeners; return the function that reports its end."""
        rpc = self._label(name, request, context.invocation_metadata())
        ends = [listener.begin_rpc(rpc) for listener in self._listeners]
        token = RPC_INSTANCE.set(rpc.instance)

        def end(code: str) -> None:
            RPC_INSTANCE.reset(token)
            for one in reversed(ends):
                one(code)

        return end

    def _admit(self, name: str, rule: RpcRule, request: Message, deadline: float | None, held: ExitStack) -> None:
        """Validate the request and take a slot and the locks, which `held` releases. Raises StorageError."""
        if rule.requires and not self._advertised().allows(*rule.requires):
            raise self._advertised().refusal(name, rule.requires[0])
        validate.request(request, rule)
        if slots := self._slots.get(rule.cost):
            held.enter_context(running_rpc(name, slots, rule.all_instances, deadline))
            held.enter_context(self._keep_open())
        if rule.exclusive or rule.shared:
            exclusive, shared = _lock_keys(request, rule.exclusive), _lock_keys(request, rule.shared)
            held.enter_context(self._locks.hold(name, exclusive, shared))


def _request_id_field() -> dict[str, str]:
    return {"request_id": request_id} if (request_id := REQUEST_ID.get()) else {}


def _lock_keys(request: Message, fields: tuple[LockField, ...]) -> list[LockKey]:
    keys = []
    for family, path in fields:
        value: Any = request
        for part in path.split("."):
            value = getattr(value, part)
        keys += [(family, text) for text in ([value] if isinstance(value, str) else value) if text]
    return keys


def _check_response(response: Message) -> None:
    """Raise InvalidResponse for a response that breaks the rules of CSI: a bug of the driver or of a backend."""
    try:
        for text in validate.response(response):
            log.info("a text of the response is cut", extra={"fields": {"text": text}})
    except (InvalidArgument, OutOfRange) as error:
        log.error("the response breaks a rule of CSI", extra={"fields": {"problem": str(error)}})
        raise InvalidResponse(f"the response breaks a rule of CSI: {error}") from None


def _code_of(error: StorageError, name: str, rule: RpcRule) -> grpc.StatusCode:
    return _code_of_bug(rule) if isinstance(error, InvalidResponse) else code_of(error, name)


def _code_of_bug(rule: RpcRule) -> grpc.StatusCode:
    """Return the status code of a bug. INTERNAL is final: after it the orchestrator forgets its request.

    That is correct where nothing can have been created. Elsewhere a volume could exist that is never deleted,
    so the code is UNAVAILABLE and the orchestrator tries again.
    """
    return grpc.StatusCode.UNAVAILABLE if rule.exclusive else grpc.StatusCode.INTERNAL


def clip(text: str) -> str:
    """Shorten a message that does not fit into a trailer: gRPC would replace it, and its code, by its own."""
    if len(text.encode()) <= MESSAGE_LIMIT:
        return text
    return f"{text.encode()[:MESSAGE_LIMIT].decode(errors='ignore')}... (the driver's log has the complete message)"


def _log_bug(name: str, error: BaseException) -> str:
    """Log an unexpected error with its traceback; return the text for the caller, which refers to the log."""
    error_id = uuid.uuid4().hex[:8]
    trace = "".join(traceback.format_exception(error)).encode(errors="replace").decode()
    fields = error.log_fields if isinstance(error, UnexpectedError) else {}
    log.error("%s failed unexpectedly", name, extra={"fields": {**fields, "error_id": error_id, "traceback": trace}})
    return f"internal error {error_id}: the driver's log has the details"


def _log_end(name: str, rule: RpcRule, code: grpc.StatusCode, text: str, started: float) -> None:
    ms = round((time.monotonic() - started) * 1000, 1)
    fields: dict[str, Any] = {**_request_id_field(), "code": code.name, "ms": ms}
    if text:
        fields["error"] = text
    level = rule.level if code is grpc.StatusCode.OK else max(rule.level, logging.INFO)
    log.log(level, "%s ends", name, extra={"fields": fields})
