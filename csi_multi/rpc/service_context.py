"""What all services share: the driver's settings, its instances, and how ids lead to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..config.settings import Driver
from ..contract import ids
from ..contract.backend import Backend
from ..contract.errors import FailedPrecondition, NotFound
from ..contract.model import Segments, Stamp, Strings
from ..contract.params import camel, duplicate_key, fields, keys_of, normalize_keys, parse
from ..core import topology
from ..core.filesystems import CLASS_KEY, OLD_CLASS_KEY
from ..core.idempotent import digest
from ..loading.instance import Instance
from ..loading.registry import Registry
from . import engine_parameters
from .capabilities import AdvertisedCapabilities, CurrentCapabilities
from .engine_parameters import EngineParameters

PROVISIONER_PREFIX = "csi.storage.k8s.io/"  # of what external-provisioner adds: names of PVC and PV, secret references


def unknown_node_segments(_node: str) -> Segments | None:
    """Only a cluster whose configuration lists its nodes knows their segments."""
    return None


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """Every service gets this one."""

    driver: Driver
    registry: Registry
    capabilities: CurrentCapabilities | AdvertisedCapabilities
    node_segments: Callable[[str], Segments | None] = unknown_node_segments  # by the node's name; None: unknown

    @property
    def advertised(self) -> AdvertisedCapabilities:
        return self.capabilities.current()

    def volume(self, volume_id: str) -> tuple[Instance, str]:
        """Return (instance, handle). Raises NotFound, or Unavailable for a broken instance."""
        return self._find("volume", volume_id)

    def snapshot(self, snapshot_id: str) -> tuple[Instance, str]:
        return self._find("snapshot", snapshot_id)

    def group(self, group_id: str) -> tuple[Instance, str]:
        return self._find("group snapshot", group_id)

    def _find(self, kind: str, text: str) -> tuple[Instance, str]:
        name, handle = ids.split(kind, text)
        return self.registry.get(name), handle

    def find_for_deletion(self, kind: str, text: str) -> tuple[Instance, str] | None:
        """Return (instance, handle) of what is to be deleted; None for an id that no configuration can have made.

        Raises FailedPrecondition for an instance that is not configured now: its volumes may still
        exist, and after a success the orchestrator would forget them.
        """
        rest = "configure it, or delete the data and then remove the object from the orchestrator by hand"
        return self._find_for_removal(kind, text, "deleted", rest)

    def find_for_detaching(self, volume_id: str) -> tuple[Instance, str] | None:
        """Like find_for_deletion, for a volume that may still be attached."""
        rest = "configure it, or detach the volume and then remove the attachment from the orchestrator by hand"
        return self._find_for_removal("volume", volume_id, "detached", rest)

    def _find_for_removal(self, kind: str, text: str, verb: str, remedy: str) -> tuple[Instance, str] | None:
        try:
            name, _ = ids.split(kind, text)
        except NotFound:
            return None
        try:
            return self._find(kind, text)
        except NotFound:
            raise FailedPrecondition(
                f"{kind} {text!r} cannot be {verb} because no backend {name!r} is configured here; {remedy}"
            ) from None

    def stamp(self, name: str, parameters: str, **more: Any) -> Stamp:
        """Return the stamp that a backend must store on a resource with this name."""
        return Stamp(driver=self.driver.name, cluster=self.driver.cluster, name=name, digest=parameters, **more)

    def segments(self, message: Any) -> dict[str, str]:
        return topology.strip_prefix(self.driver.name, message.segments)


@dataclass(frozen=True, slots=True)
class ClassParameters:
    """The parameters of a StorageClass, separated by their recipient."""

    instance: Instance
    own: Any  # the backend's Parameters
    fs_type: str  # by a key that the provisioner did not take out; "": not there
    engine: EngineParameters
    metadata: Strings
    digest: str


def class_parameters(registry: Registry, given: Mapping[str, str], mutable: Mapping[str, str]) -> ClassParameters:
    """Choose the instance and parse the other parameters. Raises InvalidArgument with the nearest valid key."""
    metadata, rest = split_metadata(given)
    instance = registry.choose(rest.pop("backend", None))
    backend = type(instance.backend)
    rest = normalize_keys(
        backend.Parameters, rest, "parameters", also=(*engine_parameters.KEYS, engine_parameters.OLD_ENCRYPTION_KEY)
    )
    engine = engine_parameters.take(backend, rest)
    given = {**rest, **engine.given}
    digested = digest(given, normalize_keys(backend.MutableParameters, mutable, "mutable_parameters"))
    fs_type = _take_filesystem(backend, rest)
    own = parse(backend.Parameters, rest, "parameters", also=("backend", *engine_parameters.KEYS))
    return ClassParameters(instance, own, fs_type, engine, metadata, digested)


def _take_filesystem(backend: type[Backend], parameters: dict[str, str]) -> str:
    """Remove the key of the filesystem, and return its value.

    The provisioner reads its old name in any capitals as well, but leaves that in the parameters; other orchestrators
    read none of its names. Raises InvalidArgument when it is there twice. A backend that has a parameter of the old
    name keeps it.
    """
    kept = any(camel(field.name).lower() == OLD_CLASS_KEY for field in fields(backend.Parameters) if not keys_of(field))
    names = {CLASS_KEY} if kept else {CLASS_KEY, OLD_CLASS_KEY}
    found = [key for key in parameters if key.lower() in names]
    if len(found) > 1:
        raise duplicate_key("parameters", found[0], found[1], f"both name the filesystem; keep only {CLASS_KEY!r}")
    return parameters.pop(found[0]) if found else ""


def split_metadata(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return (keys that the provisioner added, without its prefix; keys that the user wrote, also CLASS_KEY)."""
    added = {key for key in given if key.startswith(PROVISIONER_PREFIX) and key.lower() != CLASS_KEY}
    metadata = {key.removeprefix(PROVISIONER_PREFIX): given[key] for key in added}
    return metadata, {key: value for key, value in given.items() if key not in added}


def mutable_parameters(backend: Backend, given: Mapping[str, str]) -> Any:
    """Parse mutable_parameters; a backend without Modify has none. Raises InvalidArgument.

    Keys that external-resizer adds about the claim are left out.
    """
    own = split_metadata(given)[1]
    return parse(type(backend).MutableParameters, own, "mutable_parameters") if given else None
