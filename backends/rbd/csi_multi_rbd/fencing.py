"""Fencing: the client of a node that was declared out of service is cut off, so that its volume can move.

A node records on the image by which client it has it mapped. The next node finds that client among the watchers, asks
whether the node is out of service, and puts the client on the cluster's blocklist: no OSD accepts a write of it any
more. Each mapping is a client of its own (krbd.OWN_CONNECTION), so a node that comes back maps anew with another one,
and nothing has to be undone.
"""

from __future__ import annotations

import logging

import msgspec

from csi_multi.contract import Setting, Unavailable

from . import labels
from .client import Client
from .config import Config
from .resources import MappedImage

log = logging.getLogger(__name__)

# Much longer than the hour of Ceph itself: an image without exclusive-lock has nothing else that keeps the client out.
BLOCKED_SECONDS = 30 * 86400


class Holder(msgspec.Struct, frozen=True):
    """The image-meta labels.HOLDER: which node has the image mapped, and as which client."""

    node: str
    client: str


class Fence:
    def __init__(self, config: Config, setting: Setting) -> None:
        self._enabled = config.fencing
        self._setting = setting

    def cut_off(self, client: Client, image: str, others: tuple[str, ...], recorded: str) -> None:
        """Put the recorded client on the blocklist, if it is one of the `others` that have the image open, and its node
        is out of service. Raises PermissionDenied.
        """
        holder = _decode(recorded)
        if not self._enabled or holder is None or holder.client not in others or holder.node == self._setting.node:
            return
        try:
            if not self._setting.out_of_service(holder.node):
                return
        except Unavailable as error:  # then the volume stays where it is
            log.warning(
                "node %s uses image %s and is not cut off: whether it is out of service is unknown: %s",
                holder.node,
                image,
                error,
            )
            return
        client.blocklist(holder.client, BLOCKED_SECONDS)
        log.warning(
            "node %s is out of service: its client %s, which has image %s open, is cut off from the cluster",
            holder.node,
            holder.client,
            image,
        )

    def record(self, client: Client, image: str, mapping: MappedImage, recorded: str) -> None:
        """Record which client of this node has the image mapped, unless that is `recorded` already."""
        if not self._enabled:
            return
        address = mapping.client or _only(client.watchers(image))  # that of an rbd-nbd is not known otherwise
        text = msgspec.json.encode(Holder(node=self._setting.node, client=address)).decode()
        if address and text != recorded:
            client.set_metadata(image, labels.HOLDER, text)


def _only(watchers: tuple[str, ...]) -> str:
    return watchers[0] if len(watchers) == 1 else ""


def _decode(text: str) -> Holder | None:
    try:
        return msgspec.json.decode(text, type=Holder)
    except msgspec.DecodeError:
        return None
