"""The instance that `csi-multi conformance` judges, alone in its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from csi_multi.config.settings import Config
from csi_multi.contract import Backend, Host, ListVolumes
from csi_multi.host.command import LocalHost
from csi_multi.loading.backend_proxy import said
from csi_multi.loading.loader import UnfitBackend, connect, load_instances

from . import storage_file
from .context import CheckContext, features_of
from .fault_injection import FaultInjector
from .in_process import InProcess
from .storage import Storage


class Unusable(Exception):
    """The storage cannot be asked; the text says why."""


@dataclass(frozen=True)
class TestedInstance:
    config: Config  # with this instance only
    cls: type[Backend]
    package: str
    storage: Storage

    @property
    def name(self) -> str:
        return self.config.instances[0].name

    @property
    def kind(self) -> str:
        return self.config.instances[0].kind

    @property
    def features(self) -> frozenset[type[Backend]]:
        return features_of(self.cls)

    def direct(self) -> tuple[InProcess, FaultInjector]:
        """Return a backend object of its own, behind the in-process door."""
        injector = FaultInjector(self.storage.files)
        return InProcess(self.storage, injector), injector

    def inventory(self) -> set[str]:
        """Return what the instance lists. Raises Unusable."""
        try:
            door, injector = self.direct()
            return CheckContext(self.storage, door, self.features, injector).resources()
        except Exception as error:
            raise Unusable(f"listing what is there raised {type(error).__name__}: {said(error)}") from error

    def measured(self) -> TestedInstance:
        """Return it with the size that a volume really gets here.

        A size that is rounded up to a large minimum makes requests alike that a check means to differ.
        """
        door, injector = self.direct()
        trial = CheckContext(self.storage, door, self.features, injector)
        try:
            with trial:
                size = trial.volume().size
        except Exception:
            return self  # the checks will say what is wrong
        return replace(self, storage=replace(self.storage, size=size))

    @property
    def lists(self) -> bool:
        return ListVolumes in self.features


def load(settings: Config, told: storage_file.StorageFile) -> TestedInstance:
    """Load the one instance of the configuration. Raises ConfigError, and UnfitBackend for a broken package."""
    loaded = load_instances(settings, LocalHost())
    section = settings.instances[0]
    if reason := loaded.broken.get(section.name):
        raise UnfitBackend(reason)
    instance = loaded.get(section.name)
    cls = type(instance.backend)

    def connect_on(host: Host) -> Backend:
        return connect(settings, section, cls, host)

    return TestedInstance(settings, cls, instance.package, storage_file.storage(told, settings, connect_on))
