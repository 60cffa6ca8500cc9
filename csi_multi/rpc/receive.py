"""Reads the message of an RPC, and ends an RPC whose message does not come.

gRPC calls a handler as soon as the headers of an RPC are there. A caller that never sends the message would hold the
handler's thread for ever.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

MESSAGE_LIMIT = 5.0  # seconds between the headers of an RPC and its message
CROWDED_LIMIT = 0.5  # the same, while half of the threads wait for messages
CHECK_INTERVAL = 0.25  # seconds between two checks while an RPC waits for its message


class MessageReader:
    """Reads the messages of one server, whose RPCs run in this number of threads."""

    def __init__(self, threads: int) -> None:
        """Start the thread that ends RPCs; it ends with this object."""
        self._crowd = threads // 2
        self._waiting: dict[grpc.ServicerContext, float] = {}  # the contexts of RPCs, oldest first, and since when
        self._begun = threading.Event()  # an RPC waits, or this object is not used any more
        weakref.finalize(self, self._begun.set)
        watch = (weakref.ref(self), self._begun)
        threading.Thread(target=_watch, args=watch, name="messages", daemon=True).start()

    def read(self, request_class: type[M], messages: Iterator[bytes], context: grpc.ServicerContext) -> M:
        """Return the one message of an RPC. Ends the RPC when there is none, or when it cannot be read."""
        self._waiting[context] = time.monotonic()
        if not self._begun.is_set():
            self._begun.set()
        try:
            message = next(messages, None)
        finally:
            self._waiting.pop(context, None)
        if message is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "an RPC of CSI has exactly one request message")
            raise AssertionError("abort raises")
        try:
            return request_class.FromString(message)
        except DecodeError:
            context.abort(grpc.StatusCode.INTERNAL, f"the request is not a {request_class.DESCRIPTOR.full_name}")
            raise

    def end_late(self) -> bool:
        """End the RPCs whose message is late; return whether others wait. The callers get CANCELLED."""
        waiting = [*self._waiting.items()]
        limit = CROWDED_LIMIT if len(waiting) >= self._crowd else MESSAGE_LIMIT
        late = [context for context, since in waiting if time.monotonic() - since > limit]
        for context in late:
            self._waiting.pop(context, None)
            context.cancel()
        if late:
            log.warning(
                "%d RPCs are cancelled, because their callers did not send the request within %g s", len(late), limit
            )
        return bool(self._waiting)


def _watch(reader: weakref.ref[MessageReader], begun: threading.Event) -> None:
    while begun.wait():
        begun.clear()  # before the check, which finds all RPCs that began until now
        while _end_late(reader):
            time.sleep(CHECK_INTERVAL)
        if reader() is None:
            return


def _end_late(reader: weakref.ref[MessageReader]) -> bool:
    one = reader()
    return one.end_late() if one else False
