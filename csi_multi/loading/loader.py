"""Make the configured instances: find their packages by entry point, import the classes, call the constructors.

A kind that is not installed, or installed twice, is an error of the configuration: the driver does not start. A
broken package (its import fails, a feature is incomplete, it was written for another contract) breaks its own
instances only: they answer UNAVAILABLE with the reason, and the other instances serve.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from stevedore.named import NamedExtensionManager

from ..config.document import ConfigError
from ..config.settings import Config, InstanceSection
from ..contract.backend import GROUP, Backend, NodeLocal, Setting
from ..contract.errors import StorageError
from ..contract.machine import Host
from ..contract.observer import Listeners, Observer, observed
from ..contract.params import unknown
from ..contract.setting import NodeRecord
from ..host.supervised import CallHung, SupervisedCall
from ..node import freeze
from .backend_proxy import error_text
from .backend_validation import why_unusable
from .instance import Instance
from .registry import Registry

log = logging.getLogger(__name__)

IMPORT_LIMIT = 60.0  # seconds for the import of a package: a node that has just started may be very busy
CONSTRUCTOR_LIMIT = 20.0  # seconds for a constructor, which does no I/O


class UnusableBackend(Exception):
    """A package whose backend cannot be used; the text names it and says why."""


def load_instances(
    config: Config,
    host: Host,
    *,
    controller: bool = True,
    serves_node: bool = True,
    listeners: Listeners = (),
    local: bool | None = None,
    kept: Mapping[str, Instance] = MappingProxyType({}),
) -> Registry:
    """Make all configured instances except the `kept` ones. Raises ConfigError for errors of the configuration.

    `local`: whether this process does the controller's work for node-local instances; None: as for all others.
    """
    refuse_missing_or_duplicate(config)
    kinds = dict.fromkeys(section.kind for section in config.instances if section.name not in kept)
    classes, broken_kinds = backend_classes(kinds)
    instances, broken = [], {}
    for section in config.instances:
        if section.name in kept:
            instances.append(kept[section.name])
            continue
        try:
            if section.kind in broken_kinds:
                raise UnusableBackend(broken_kinds[section.kind])
            cls = classes[section.kind]
            node_local = local is not None and issubclass(cls, NodeLocal)
            does_control = bool(local) if node_local else controller
            made = _instance(config, section, cls, host, does_control, serves_node, listeners)
            made.remote = node_local and controller and not local
            instances.append(made)
        except CallHung as error:  # the other instances of the kind are not tried: each would delay the start as long
            broken_kinds[section.kind] = f"{package_of(section.kind)}: the constructor of {section.name!r} {error}"
            log.error("backend %s is broken: %s", section.name, broken_kinds[section.kind])
            broken[section.name] = broken_kinds[section.kind]
        except UnusableBackend as error:
            log.error("backend %s is broken: %s", section.name, error)
            broken[section.name] = str(error)
        except ConfigError:
            for made in (one for one in instances if one.name not in kept):
                made.close()
            raise
    return Registry(instances, broken, config.driver.default_backend)


def make_backend(config: Config, section: InstanceSection, cls: type[Backend], host: Host) -> Backend:
    """Make one configured backend without the proxy, for tests of its contract. Raises as load_instances does."""
    return _instance(config, section, cls, host).backend


def refuse_missing_or_duplicate(config: Config) -> None:
    """Raise ConfigError when a configured kind is not installed, or installed more than once."""
    installed = {point.name for point in entry_points(group=GROUP)}
    for section in config.instances:
        where = ("backends", section.name, "kind")
        if section.kind not in installed:
            text = unknown(f"backends.{section.name}.kind", section.kind, installed, "kind")
            raise config.document.error(where, f"{text}; install the package that provides the kind")
        if reason := duplicate_providers(section.kind):
            raise config.document.error(where, f"kind {section.kind!r} is {reason}")


def duplicate_providers(kind: str) -> str:
    """Return which packages provide a kind twice; "" when only one does.

    Counted here because stevedore's own check misses duplicates that are not adjacent.
    """
    points = entry_points(group=GROUP, name=kind)
    owners = sorted(f"{point.value} of {point.dist.name if point.dist else '?'}" for point in points)
    return f"provided by {' and '.join(owners)}; remove one of them" if len(owners) > 1 else ""


def backend_classes(kinds: Iterable[str]) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return (class by kind, reason by kind that cannot be used)."""
    classes: dict[str, type[Backend]] = {}
    broken: dict[str, str] = {}
    for kind in kinds:
        try:
            found, reason = SupervisedCall(f"import-{kind}", functools.partial(_import_class, kind)).result(
                IMPORT_LIMIT
            )
        except CallHung as error:
            found, reason = None, f"its import {error}"
        except Exception as error:  # checking a class runs foreign code too: its metaclass, its schemas
            found, reason = None, f"cannot be checked: {type(error).__name__}: {error_text(error)}"
        if found is None or reason:
            broken[kind] = f"{package_of(kind)}: {reason}"
        else:
            classes[kind] = found
    return classes, broken


def _import_class(kind: str) -> tuple[type[Backend] | None, str]:
    """Return the class of a kind, and why it cannot be used ("" if it can)."""
    reasons: list[str] = []

    def ignore_missing(_names: Any) -> None:
        """Reported below, together with what failed() has recorded."""

    def failed(_manager: Any, point: Any, error: BaseException) -> None:
        reasons.append(f"{point.value} cannot be imported: {type(error).__name__}: {error_text(error)}")

    try:
        manager = NamedExtensionManager(
            GROUP, [kind], on_load_failure_callback=failed, on_missing_entrypoints_callback=ignore_missing
        )
    except BaseException as error:  # stevedore lets AssertionError through, and SystemExit
        return None, f"cannot be imported: {type(error).__name__}: {error_text(error)}"
    for extension in manager:
        reason = why_unusable(extension.plugin)
        return extension.plugin, f"{extension.entry_point_target}: {reason}" if reason else ""
    return None, reasons[0] if reasons else "its entry point does not exist"


def package_of(kind: str) -> str:
    """Return name and version of the package that provides a kind, for error messages."""
    owners = [point.dist for point in entry_points(group=GROUP, name=kind) if point.dist]
    return f"{owners[0].name} {owners[0].version}" if owners else "no package"


def _out_of_service(node: str) -> bool:
    from ..kubernetes.node_state import is_out_of_service  # imports HTTPS, which few instances need

    return is_out_of_service(node)


def _node_record(node: str) -> NodeRecord:
    from ..kubernetes.node_state import node_record

    return node_record(node)


def _instance(
    config: Config,
    section: InstanceSection,
    cls: type[Backend],
    host: Host,
    controller: bool = True,
    serves_node: bool = True,
    listeners: Listeners = (),
) -> Instance:
    path = ("backends", section.name)
    options = functools.partial(config.document.section, path, cls.Config, section.values)
    setting = Setting(
        instance=section.name,
        driver=config.driver.name,
        cluster=config.driver.cluster,
        node=config.driver.node,
        host=observed(host, section.name, listeners),
        controller=controller,
        serves_node=serves_node,
        observe=Observer(section.name, listeners),
        frozen=freeze.frozen,
        out_of_service=_out_of_service,
        node_record=functools.partial(_node_record, config.driver.node),
    )
    try:
        made = SupervisedCall(f"make-{section.name}", lambda: cls(options(), setting)).result(CONSTRUCTOR_LIMIT)
        return Instance(section.name, section.kind, made, package_of(section.kind))
    except StorageError as error:
        raise config.document.error(path, f"backends.{section.name}: {error_text(error)}") from None
    except (ConfigError, CallHung):
        raise
    except Exception as error:
        log.exception("backend %s: its constructor failed", section.name)
        reason = f"its constructor raised {type(error).__name__}: {error_text(error)}"
        raise UnusableBackend(f"{package_of(section.kind)}: {reason}") from error
