"""Explains a StorageClass: the driver's own code goes through a creation with a backend that changes nothing."""

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
from ...node import encryption_options
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
    """The options of the command line except the two files."""

    size: int = 0
    place: Segments = field(default_factory=dict)  # keys as the operator wrote them, with or without prefix
    node: str = ""
    source: Source | None = None
    volume: str = EXAMPLE
    access_mode: str = "SINGLE_NODE_MULTI_WRITER"
    block: bool = False
    claim: tuple[str, str] = ("default", "example")  # namespace, name
    offline: bool = False


def explain(file: Path, storage_class: StorageClass, options: ExplainOptions) -> Explanation:
    """Explain one class. Raises ConfigError for an error of the configuration."""
    own = load_config(file)
    node_name = _node(own, options)
    settings = load_config(file, node_name) if node_name else own
    instances = load_instances(settings, LocalHost())
    try:
        return _Explainer(
            settings, instances, storage_class, options, other_node=node_name not in ("", own.driver.node)
        ).explain()
    finally:
        instances.close()


def _node(settings: Config, options: ExplainOptions) -> str:
    """Return the node of the options; "" without one."""
    key = f"{settings.driver.name}/{topology.NODE}"
    return options.node or options.place.get(key, "") or options.place.get(topology.NODE, "")


class _Explainer:
    """Fills one Explanation."""

    def __init__(
        self,
        settings: Config,
        instances: Registry,
        storage_class: StorageClass,
        options: ExplainOptions,
        *,
        other_node: bool,
    ) -> None:
        self._settings = settings
        self._driver = settings.driver
        self._instances = instances
        self._class = storage_class
        self._options = options
        self._other_node = other_node
        self._explanation = Explanation(
            storage_class=storage_class.name, where=storage_class.where("kind"), volume=options.volume
        )

    def explain(self) -> Explanation:
        explanation = self._explanation
        try:
            parameters, request = provisioner.volume_request(self._driver, self._instances, self._claim())
        except StorageError as error:
            explanation.refused = self._refusal(error)
            return explanation
        instance = parameters.instance
        explanation.instance, explanation.kind = instance.name, instance.kind
        explanation.instance_reason = self._instance_reason(instance)
        explanation.parameters = tuple(_parameters(parameters, self._class))
        explanation.policies = tuple(advice.policies(self._class))
        explanation.warnings = tuple(advice.warnings(self._class, instance.backend, self._driver, self._options.place))
        explanation.requested_bytes = request.size.required and request.size.required - parameters.engine.overhead
        explanation.refused = node.refusal_reason(self._class)
        explanation.filesystem = node.filesystem(self._class, parameters.engine.filesystem, request, self._driver)
        self._create(instance, request)
        return explanation

    def _claim(self) -> ProvisionerClaim:
        options = self._options
        namespace, name = options.claim
        metadata = {"pvc/name": name, "pvc/namespace": namespace, "pv/name": options.volume}
        return ProvisionerClaim(
            volume=options.volume,
            parameters=self._class.parameters,
            size=options.size,
            access_mode=options.access_mode,
            block=options.block,
            fs_type=self._class.fs_type,
            mount_flags=self._class.mount_flags,
            places=self._places(),
            source=options.source,
            metadata=metadata,
        )

    def _places(self) -> tuple[Segments, ...]:
        """Return where the volume must be reachable: the given place or node, else what the class allows."""
        given = {self._without_prefix(key): text for key, text in self._options.place.items()}
        given |= {topology.NODE: self._options.node} if self._options.node else {}
        if given:
            return (given,)
        return tuple({self._without_prefix(key): text for key, text in place.items()} for place in self._class.places)

    def _without_prefix(self, key: str) -> str:
        return topology.WELL_KNOWN_KEYS.get(key, key.removeprefix(f"{self._driver.name}/").lower())

    def _instance_reason(self, instance: Instance) -> str:
        if "backend" in self._class.parameters:
            return f"parameter 'backend' of the class ({self._class.where('parameters', 'backend')})"
        where = self._settings.document.error(("driver", "default_backend"), "")
        return f"driver.default_backend, because the class has no parameter 'backend' ({str(where)[:-2]})"

    def _create(self, instance: Instance, request: VolumeRequest) -> None:
        explanation, backend = self._explanation, instance.backend
        if not isinstance(backend, Explain):
            explanation.not_shown = (
                f"backend {instance.name!r} ({instance.package}) has no dry run, so its steps cannot be shown"
            )
            return
        local = isinstance(backend, NodeLocal)
        explanation.storage_not_read = "--offline was given" if self._options.offline else ""
        if local and self._other_node and not explanation.storage_not_read:
            here = socket.gethostname()
            explanation.storage_not_read = (
                f"the storage is on node {self._driver.node!r}, and this is {here!r}; run the command there to read it"
            )
        if not explanation.storage_not_read:
            try:
                self._dry_run(instance, backend, request, DryRunReport())
                return
            except UNREACHABLE as error:
                explanation.storage_not_read = str(error)
        try:
            self._dry_run(instance, backend, request, DryRunReport(offline=True))
        except UNREACHABLE as error:
            explanation.not_shown = f"this is not known without the storage: {error}"

    def _dry_run(self, instance: Instance, backend: Explain, request: VolumeRequest, report: DryRunReport) -> None:
        """Record the steps of the creation. Raises UNREACHABLE, except for Unpredictable."""
        explanation, volume = self._explanation, None
        idempotent.refuse_unusable(backend, request)
        dry_run = backend.dry_run(report)
        try:
            volume = idempotent.create_volume(dry_run, request, self._driver.node)
        except Unpredictable as error:
            explanation.not_shown = str(error)
        except UNREACHABLE:
            raise
        except StorageError as error:
            explanation.refused = explanation.refused or self._refusal(error)
        finally:
            dry_run.close()
        explanation.commands = tuple(
            ExplainedCommand(words=step.words, why=step.why, changes=step.changes) for step in report.steps
        )
        explanation.assumed = tuple(report.assumed)
        if volume:
            self._record_volume(instance, volume)
        explanation.places_reason = self._places_reason(instance)

    def _record_volume(self, instance: Instance, volume: Volume) -> None:
        explanation = self._explanation
        explanation.volume_handle = ids.join(instance.name, volume.handle)
        explanation.bytes = volume.size - encryption_options.overhead(volume.stamp.context)
        copied = volume.stamp.source is not None
        explanation.size = _size_text(explanation.requested_bytes, explanation.bytes, copied=copied)
        places = topology.of_volume(instance.backend, volume)
        explanation.places = tuple(", ".join(f"{key}={text}" for key, text in place.items()) for place in places)

    def _places_reason(self, instance: Instance) -> str:
        given, backend = bool(self._places()), instance.backend
        if not topology.constrained(backend):
            return "reachable from every node"
        if isinstance(backend, NodeLocal):
            why = "from the options" if _node(self._settings, self._options) else "the node of this configuration"
            more = "" if given else "; in a cluster with WaitForFirstConsumer the scheduler chooses the node"
            return f"local to node {self._driver.node!r} ({why}){more}"
        return (
            "the first requested place with space" if given else "chosen by the backend, because no place is requested"
        )

    def _refusal(self, error: StorageError) -> str:
        """Return the error of CreateVolume, with the line of the first key in it."""
        for key in re.findall(r"'([^']+)'", str(error)):
            if ("parameters", key) in self._class.document.lines:
                return f"{self._class.where('parameters', key)}: {error}"
        return f"{self._class.where('parameters')}: {error}" if isinstance(error, InvalidArgument) else str(error)


def _parameters(parameters: ClassParameters, storage_class: StorageClass) -> list[ExplainedParameter]:
    """Return all parameters of the backend with their values, and the mkfs options that are given."""
    rows = []
    parts: tuple[tuple[Schema, bool], ...] = (
        (parameters.own, True),
        (parameters.engine.filesystem, False),
        (parameters.engine.encryption, False),
        (parameters.engine.trim, False),
    )
    for part, everything in parts:
        meanings = {name: text for name, _, _, text in describe(type(part))}
        for item in fields(type(part)):
            value, key = getattr(part, item.name), camel(item.name)
            many = value if keys_of(item) else {key: value}
            for name, text in many.items():
                given = name in storage_class.parameters
                if everything or given:
                    meaning = meanings[item.name]
                    rows.append(ExplainedParameter(key=name, value=_text(text), given=given, meaning=meaning))
    return rows


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def _size_text(requested: int, created: int, *, copied: bool) -> str:
    if not requested:
        origin = "the size of the source" if copied else "the default"
        return f"{quantity.format_size(created)}, {origin}, because none is requested"
    if created > requested:
        return (
            f"{quantity.format_size(created)}: {created - requested} bytes more than requested, the next possible size"
        )
    return f"{quantity.format_size(created)}, exactly as requested"


def source(kind: str, text: str) -> str:
    """Return the id of a source. Raises ConfigError for one of another form."""
    try:
        ids.split(kind, text)
    except NotFound as error:
        raise ConfigError(f"--from-{kind}: {error}") from None
    return text
