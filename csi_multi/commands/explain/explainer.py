"""Explain a StorageClass: the driver's own code goes through a creation whose backend changes nothing."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from ...config.document import ConfigError
from ...config.settings import Config, load_config
from ...contract import ids
from ...contract.backend import Explain, NodeLocal
from ...contract.dry_run import DryRunReport, Unpredictable
from ...contract.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StorageError,
    Timeout,
    Unauthenticated,
    Unavailable,
)
from ...contract.model import Segments, Source, Volume, VolumeRequest
from ...contract.params import Schema, camel, describe, fields, keys_of
from ...core import idempotent, topology
from ...host.command import LocalHost
from ...loading.instance import Instance
from ...loading.loader import load_instances
from ...loading.registry import Registry
from ...rpc import provisioner
from ...rpc.provisioner import ProvisionerClaim
from ...rpc.service_context import ClassParameters
from . import advice, node, quantity
from .arguments import EXAMPLE
from .explanation import ExplainedCommand, ExplainedParameter, Explanation
from .storageclass import StorageClass

UNREACHABLE = (Unavailable, Timeout, Unauthenticated, PermissionDenied)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """What was asked on the command line, beside the two files."""

    size: int = 0
    place: Segments = field(default_factory=dict)  # keys as the operator wrote them, with prefix or without
    node: str = ""
    source: Source | None = None
    volume: str = EXAMPLE
    access_mode: str = "SINGLE_NODE_MULTI_WRITER"
    block: bool = False
    claim: tuple[str, str] = ("default", "example")  # namespace, name
    offline: bool = False


def explain(file: Path, one: StorageClass, question: ExplainOptions) -> Explanation:
    """Explain one class. Raises ConfigError for what is wrong with the configuration."""
    usual = load_config(file)
    wanted = _node(usual, question)
    settings = load_config(file, wanted) if wanted else usual
    instances = load_instances(settings, LocalHost())
    try:
        return _Explainer(settings, instances, one, question, elsewhere=wanted not in ("", usual.driver.node)).all()
    finally:
        instances.close()


def _node(usual: Config, question: ExplainOptions) -> str:
    """Return the node that was asked for, "" where none was."""
    key = f"{usual.driver.name}/{topology.NODE}"
    return question.node or question.place.get(key, "") or question.place.get(topology.NODE, "")


class _Explainer:
    def __init__(
        self, settings: Config, instances: Registry, one: StorageClass, question: ExplainOptions, *, elsewhere: bool
    ) -> None:
        self._settings = settings
        self._driver = settings.driver
        self._instances = instances
        self._class = one
        self._question = question
        self._elsewhere = elsewhere
        self._told = Explanation(storage_class=one.name, where=one.where("kind"), volume=question.volume)

    def all(self) -> Explanation:
        told = self._told
        try:
            parameters, request = provisioner.volume_request(self._driver, self._instances, self._claim())
        except StorageError as error:
            told.refused = self._refusal(error)
            return told
        instance = parameters.instance
        told.instance, told.kind, told.chosen = instance.name, instance.kind, self._chosen(instance)
        told.parameters = tuple(_parameters(parameters, self._class))
        told.policies = tuple(advice.policies(self._class))
        told.warnings = tuple(advice.warnings(self._class, instance.backend, self._driver, self._question.place))
        told.asked_bytes = request.size.required
        told.refused = node.objection(self._class)
        told.filesystem = node.filesystem(self._class, parameters.filesystem, request, self._driver)
        self._create(instance, request)
        return told

    def _claim(self) -> ProvisionerClaim:
        question = self._question
        namespace, name = question.claim
        named = {"pvc/name": name, "pvc/namespace": namespace, "pv/name": question.volume}
        return ProvisionerClaim(
            volume=question.volume,
            parameters=self._class.parameters,
            size=question.size,
            access_mode=question.access_mode,
            block=question.block,
            fs_type=self._class.fs_type,
            mount_flags=self._class.mount_flags,
            places=self._places(),
            source=question.source,
            metadata=named,
        )

    def _places(self) -> tuple[Segments, ...]:
        """Return where the volume is to be reachable: the node's place once a node is chosen, else what is allowed."""
        asked = {self._bare(key): text for key, text in self._question.place.items()}
        asked |= {topology.NODE: self._question.node} if self._question.node else {}
        if asked:
            return (asked,)
        return tuple({self._bare(key): text for key, text in place.items()} for place in self._class.places)

    def _bare(self, key: str) -> str:
        return key.removeprefix(f"{self._driver.name}/").lower()

    def _chosen(self, instance: Instance) -> str:
        if "backend" in self._class.parameters:
            return f"the class says so: parameter 'backend' ({self._class.where('parameters', 'backend')})"
        where = self._settings.document.error(("driver", "default_backend"), "")
        return f"the class has no parameter 'backend', so it is driver.default_backend ({str(where)[:-2]})"

    def _create(self, instance: Instance, request: VolumeRequest) -> None:
        told, backend = self._told, instance.backend
        if not isinstance(backend, Explain):
            told.goes_on = f"backend {instance.name!r} ({instance.package}) cannot tell what it would do"
            return
        local = isinstance(backend, NodeLocal)
        told.not_asked = "asked for with --offline" if self._question.offline else ""
        if local and self._elsewhere and not told.not_asked:
            here = socket.gethostname()
            told.not_asked = (
                f"the storage is on node {self._driver.node!r}, and this is {here!r}; run the command there to ask it"
            )
        if not told.not_asked:
            try:
                self._rehearse(instance, backend, request, DryRunReport())
                return
            except UNREACHABLE as error:
                told.not_asked = str(error)
        try:
            self._rehearse(instance, backend, request, DryRunReport(offline=True))
        except UNREACHABLE as error:
            told.goes_on = f"this cannot be told without the storage: {error}"

    def _rehearse(self, instance: Instance, backend: Explain, request: VolumeRequest, report: DryRunReport) -> None:
        """Raises OUT_OF_REACH, but for what cannot be foreseen."""
        told, volume = self._told, None
        idempotent.refuse_unusable(backend, request)
        dry_run = backend.dry_run(report)
        try:
            volume = idempotent.create_volume(dry_run, request, self._driver.node)
        except Unpredictable as error:
            told.goes_on = str(error)
        except UNREACHABLE:
            raise
        except StorageError as error:
            told.refused = told.refused or self._refusal(error)
        finally:
            dry_run.close()
        told.commands = tuple(
            ExplainedCommand(words=step.words, why=step.why, changes=step.changes) for step in report.steps
        )
        told.assumed = tuple(report.assumed)
        if volume:
            self._made(instance, volume)
        told.placed = self._placed(instance)

    def _made(self, instance: Instance, volume: Volume) -> None:
        told = self._told
        told.volume_handle = ids.join(instance.name, volume.handle)
        told.bytes = volume.size
        told.size = _size_text(told.asked_bytes, volume.size, copied=volume.stamp.source is not None)
        places = topology.of_volume(instance.backend, volume)
        told.places = tuple(", ".join(f"{key}={text}" for key, text in place.items()) for place in places)

    def _placed(self, instance: Instance) -> str:
        asked, backend = bool(self._places()), instance.backend
        if not topology.constrained(backend):
            return "every node reaches it"
        if isinstance(backend, NodeLocal):
            why = "asked for" if _node(self._settings, self._question) else "this configuration's node"
            more = "" if asked else "; in a cluster the scheduler chooses the node, with WaitForFirstConsumer"
            return f"it lives on node {self._driver.node!r} ({why}) and cannot leave it{more}"
        return "the first place asked for that has room" if asked else "no place was asked for, so the backend chooses"

    def _refusal(self, error: StorageError) -> str:
        """Say what CreateVolume would answer, with the line of the key that is named first."""
        for key in re.findall(r"'([^']+)'", str(error)):
            if ("parameters", key) in self._class.document.lines:
                return f"{self._class.where('parameters', key)}: {error}"
        return f"{self._class.where('parameters')}: {error}" if isinstance(error, InvalidArgument) else str(error)


def _parameters(parameters: ClassParameters, one: StorageClass) -> list[ExplainedParameter]:
    """Return every parameter of the backend as it counts, and the mkfs options that are given."""
    rows = []
    parts: tuple[tuple[Schema, bool], ...] = ((parameters.own, True), (parameters.filesystem, False))
    for part, everything in parts:
        meanings = {name: text for name, _, _, text in describe(type(part))}
        for item in fields(type(part)):
            value, key = getattr(part, item.name), camel(item.name)
            many = value if keys_of(item) else {key: value}
            for name, text in many.items():
                given = name in one.parameters
                if everything or given:
                    meaning = meanings[item.name]
                    rows.append(ExplainedParameter(key=name, value=_text(text), given=given, meaning=meaning))
    return rows


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def _size_text(asked: int, made: int, *, copied: bool) -> str:
    if not asked:
        return (
            f"{quantity.format_size(made)}: none was asked for, so it is {'the source' if copied else 'the default'}'s"
        )
    if made > asked:
        return f"{quantity.format_size(made)}: {made - asked} bytes more than asked for, the next size that can be made"
    return f"{quantity.format_size(made)}, exactly as asked"


def source(kind: str, text: str) -> str:
    """Return the id of a source. Raises ConfigError for one of another shape."""
    try:
        ids.split(kind, text)
    except NotFound as error:
        raise ConfigError(f"--from-{kind}: {error}") from None
    return text
