"""`csi-multi check`: validates a configuration and prints what the driver would advertise. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from ..config.cluster import Cluster
from ..config.settings import load_config
from ..contract.backend import FEATURES, Backend
from ..host.command import LocalHost
from ..loading.loader import load_instances
from ..rpc.capabilities import AdvertisedCapabilities, Mode, advertise, reasons_not_advertised

SERVICES = ("plugin", "controller", "group", "node")  # in the order of the output; plugin is Identity


def check(file: Path) -> int:
    """Print the result; return 1 when the package of an instance is broken. Raises ConfigError."""
    settings = load_config(file)
    instances = load_instances(settings, LocalHost())
    driver = settings.driver
    print(f"{file}: driver {driver.name}, node {driver.node}, cluster {driver.cluster} (the storage is not contacted)")
    for instance in instances:
        default = " (default)" if instance.name == driver.default_backend else ""
        print(f"  backend {instance.name}{default}: {instance.kind}: {', '.join(features(instance.backend))}")
    for name, reason in instances.broken.items():
        print(f"  backend {name}: BROKEN: {reason}")
    if settings.cluster != Cluster():
        print(f"  cluster: {_cluster(settings.cluster)}")
    backends = {instance.name: instance.backend for instance in instances}
    advertised = advertise(backends.values(), Mode.ALL, driver.alpha, attach=settings.cluster.attach_required)
    for service in SERVICES:
        print(f"  {service} capabilities: {', '.join(_names(advertised, service)) or 'none'}")
    for reason, names in reasons_not_advertised(backends, advertised).items():
        print(f"  not advertised ({reason}): {', '.join(names)}")
    for mode in (Mode.CONTROLLER, Mode.NODE):
        print(f"  --mode {mode.value} serves {', '.join(filter(mode.serves, SERVICES))}")
    return 1 if instances.broken else 0


def _cluster(cluster: Cluster) -> str:
    """Return the nodes that the controller forwards RPCs to, and what the nodes serve."""
    nodes = "from the Kubernetes API" if cluster.kubernetes else ", ".join(sorted(cluster.nodes)) or "none"
    parts = [f"nodes: {nodes}"]
    parts += [f"nodes serve {cluster.controller_identity} on {cluster.listen}"] if cluster.listen else []
    parts += [f"LOST: {', '.join(sorted(cluster.lost))}"] if cluster.lost else []
    parts += ["all volumes are attached"] if cluster.attach_required else []
    return "; ".join(parts)


def features(backend: Backend) -> list[str]:
    """Return the names of the optional features a backend has."""
    return [feature.__name__ for feature in FEATURES if isinstance(backend, feature)]


def _names(advertised: AdvertisedCapabilities, service: str) -> list[str]:
    extra = [f"{name} expansion" for name in advertised.expansion_types] if service == "plugin" else []
    return advertised.of(service) + extra
