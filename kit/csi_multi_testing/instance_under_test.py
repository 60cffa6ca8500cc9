"""The configured instance that `csi-multi conformance` tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from csi_multi.config.settings import Config
from csi_multi.contract import Backend, Host, ListVolumes
from csi_multi.host.command import LocalHost
from csi_multi.loading.backend_proxy import error_text
from csi_multi.loading.loader import UnusableBackend, load_instances, make_backend

from . import storage_file
from .context import CheckContext, features_of
from .fault_injection import FaultInjector
from .in_process import InProcessClient
from .secret_watch import marked
from .storage import Storage


class InstanceUnreadable(Exception):
    """The instance cannot be listed; the text says why."""


@dataclass(frozen=True)
class InstanceUnderTest:
    config: Config  # with this instance only
    cls: type[Backend]
    package: str
    storage: Storage

    def __post_init__(self) -> None:
        object.__setattr__(self, "storage", marked(self.storage))

    @property
    def name(self) -> str:
        return self.config.instances[0].name

    @property
    def kind(self) -> str:
        return self.config.instances[0].kind

    @property
    def features(self) -> frozenset[type[Backend]]:
        return features_of(self.cls)

    def in_process(self) -> tuple[InProcessClient, FaultInjector]:
        """Return an in-process client with a new backend object, and its fault injector."""
        injector = FaultInjector(self.storage.files)
        return InProcessClient(self.storage, injector), injector

    def inventory(self) -> set[str]:
        """Return the names of all volumes and snapshots that the instance lists. Raises InstanceUnreadable."""
        try:
            client, injector = self.in_process()
            return CheckContext(self.storage, client, self.features, injector).resources()
        except Exception as error:
            raise InstanceUnreadable(
                f"listing its volumes raised {type(error).__name__}: {error_text(error)}"
            ) from error

    def with_real_size(self) -> InstanceUnderTest:
        """Return it with Storage.size set to the real size of a volume that was requested with that size.

        A backend that rounds up to a large minimum would make requests equal that a check needs to be different.
        """
        client, injector = self.in_process()
        context = CheckContext(self.storage, client, self.features, injector)
        try:
            with context:
                size = context.volume().size
        except Exception:
            return self  # the checks report the error
        return replace(self, storage=replace(self.storage, size=size))

    @property
    def can_list_volumes(self) -> bool:
        return ListVolumes in self.features


def load(settings: Config, described: storage_file.StorageFile) -> InstanceUnderTest:
    """Load the one instance of the configuration. Raises ConfigError, and UnusableBackend for a broken package."""
    loaded = load_instances(settings, LocalHost())
    section = settings.instances[0]
    if reason := loaded.broken.get(section.name):
        raise UnusableBackend(reason)
    instance = loaded.get(section.name)
    cls = type(instance.backend)

    def connect_on(host: Host) -> Backend:
        return make_backend(settings, section, cls, host)

    return InstanceUnderTest(settings, cls, instance.package, storage_file.storage(described, settings, connect_on))
