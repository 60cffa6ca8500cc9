"""What an instance is given beside its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .errors import FailedPrecondition
from .machine import Host
from .model import Strings
from .observer import UNOBSERVED, Observer

FREEZE_SECONDS = 60.0  # for which a filesystem is frozen at most, unless a backend asks for more or less


class Freeze(Protocol):
    """Setting.frozen: freezes the filesystems of a device on this node for a block."""

    def __call__(self, device: Path, seconds: float = FREEZE_SECONDS) -> AbstractContextManager[None]:
        """Freeze what is mounted from the device, or from a device above it; nothing where it is not mounted.

        Everything is written out first, and what writes meanwhile waits. It is frozen for at most `seconds`: thawed at
        the end of the block, when the driver stops, and after the death of this process by the next one. The block's
        end raises Unavailable when it was thawed before, by whoever, or may still be frozen: then the copy may not be
        one of one point in time, and has to be given up. Before the block it raises Busy while it is frozen for another
        block, FailedPrecondition for a filesystem that cannot be frozen, and Unavailable, also for one that another
        program froze. An error of the block is raised as it is.
        """


@contextmanager
def _refuse_to_freeze(device: Path, seconds: float = FREEZE_SECONDS) -> Iterator[None]:  # noqa: ARG001
    raise FailedPrecondition(
        f"{device} cannot be frozen: this Setting was made without a freeze; pass `frozen=`, or use "
        "csi_multi_testing.storage.setting"
    )
    yield


def _in_service(_node: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What the orchestrator has on record of a node (since 1.1)."""

    provider_id: str  # the machine's id at who provides it, such as aws:///eu-west-1a/i-0abc; "": none yet
    labels: Strings


def _no_record() -> NodeRecord:
    raise FailedPrecondition(
        "the orchestrator has no record of this node: this Setting was made without `node_record=`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The environment of an instance: every constructor gets it beside the configuration.

    Background work on the whole storage is only for processes with `controller`, because there may be a
    thousand nodes. What is open on `node` is known only to a process with `serves_node` (since 1.1): a controller has
    the name of a node too, and neither its devices nor its mounts; in mode all both are True. Calls to the storage
    that do not use `host` are reported to metrics and traces with `with setting.observe("ec2", "CreateVolume"):`. A
    backend whose snapshot of a mounted volume needs its filesystem frozen cuts it in
    `with setting.frozen(device.path):` (since 1.1). Whether a node was declared out of service, so that what it still
    does to a volume must be stopped before another node uses that, is what `setting.out_of_service(name)` returns; it
    raises Unavailable where the orchestrator does not answer (since 1.1). What the orchestrator has on record of this
    node is what `setting.node_record()` returns; it raises Unavailable, and FailedPrecondition where there is no
    orchestrator to ask (since 1.1).
    """

    instance: str
    driver: str
    cluster: str
    node: str
    host: Host
    controller: bool = True
    serves_node: bool = True
    observe: Observer = UNOBSERVED
    frozen: Freeze = _refuse_to_freeze
    out_of_service: Callable[[str], bool] = _in_service
    node_record: Callable[[], NodeRecord] = _no_record
