"""`csi-multi import`: prints the manifest to stdout, and the changes to stderr."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
from collections.abc import Iterator

from ...config.document import ConfigError
from ...config.settings import Config, load_config
from ...contract import ids
from ...contract.backend import Import
from ...contract.dry_run import DryRunReport
from ...contract.errors import InvalidArgument, NotFound, StorageError
from ...contract.model import IMPORTED, AccessMode, Capability, Mount, Stamp
from ...contract.params import unknown
from ...core import topology
from ...core.filesystems import FS_TYPE
from ...host.command import LocalHost
from ...loading.instance import Instance
from ...loading.loader import load_instances
from ...loading.registry import Registry
from ...node.mkfs_options import require_supported
from .manifest import ManifestOptions, manifest

PV_NAME = re.compile(r"(?=.{1,128}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
CSI_ACCESS_MODES = {
    "ReadWriteOnce": AccessMode.SINGLE_NODE_MULTI_WRITER,
    "ReadWriteOncePod": AccessMode.SINGLE_NODE_SINGLE_WRITER,
    "ReadOnlyMany": AccessMode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": AccessMode.MULTI_NODE_MULTI_WRITER,
}


def run(options: argparse.Namespace) -> int:
    """Import or release one volume; return 1 when it is refused. Raises ConfigError for bad usage."""
    settings = load_config(options.config, options.node)
    with contextlib.redirect_stdout(sys.stderr):  # a package that prints must not corrupt the manifest
        instances = load_instances(settings, LocalHost())
    try:
        instance = _instance(instances, options.instance)
        if options.release:
            _release(instance, options)
        else:
            _import(settings, instance, options)
    except StorageError as error:
        print(f"csi-multi: {options.volume} was not changed: {error}", file=sys.stderr)
        return 1
    finally:
        instances.close()
    return 0


def _import(settings: Config, instance: Instance, options: argparse.Namespace) -> None:
    if not PV_NAME.fullmatch(options.name):
        rule = "1 to 128 of a-z, 0-9, '-' and '.', with a letter or digit at both ends"
        raise ConfigError(f"--name: {options.name!r} is not a valid name of a PersistentVolume: {rule}")
    manifest_options = ManifestOptions(
        storage_class=options.storageclass,
        claim=_claim(options.claim),
        fs_type=options.fs_type,
        block=options.block,
        access_mode=options.access_mode,
    )
    _refuse_unusable(instance, manifest_options)
    context = {FS_TYPE: options.fs_type} if options.fs_type and not options.block else {}
    driver = settings.driver
    stamp = Stamp(driver=driver.name, cluster=driver.cluster, name=options.name, digest=IMPORTED, context=context)
    with _backend(instance, apply=options.apply) as backend:
        volume = backend.import_volume(options.volume, stamp)
    found = topology.of_volume(instance.backend, volume)
    places = [topology.volume_keys(driver.name, instance.backend, place) for place in found]
    print(manifest(driver.name, instance.name, volume, places, manifest_options), end="")


def _release(instance: Instance, options: argparse.Namespace) -> None:
    name, handle = ids.split("volume", options.volume)
    if name != instance.name:
        raise NotFound(f"volume {options.volume!r} belongs to backend {name!r}, not {instance.name!r}")
    with _backend(instance, apply=options.apply) as backend:
        native = backend.release_volume(handle)
    verb = "is now" if options.apply else "would be"
    print(f"csi-multi: the volume {verb} {native}; delete its PersistentVolume, if there is one", file=sys.stderr)


@contextlib.contextmanager
def _backend(instance: Instance, *, apply: bool) -> Iterator[Import]:
    """Yield the backend itself, or its dry run, whose changes are printed afterwards."""
    if not isinstance(instance.backend, Import):
        raise InvalidArgument(f"backend {instance.name!r} ({instance.package}) cannot import volumes")
    if apply:
        yield instance.backend
        return
    report = DryRunReport()
    dry_run = instance.backend.dry_run(report)
    assert isinstance(dry_run, Import)
    try:
        yield dry_run
    finally:
        dry_run.close()
    changes = [step for step in report.steps if step.changes]
    print(
        "Nothing was changed. With --apply this is done:" if changes else "There is nothing to change.", file=sys.stderr
    )
    for step in changes:
        print(f"  {shlex.join(step.words)}\n      {step.why}", file=sys.stderr)


def _instance(instances: Registry, name: str) -> Instance:
    names = sorted(instances.names())
    if name not in names:
        raise ConfigError(unknown("--instance", name, names, "instance"))
    return instances.get(name)


def _refuse_unusable(instance: Instance, options: ManifestOptions) -> None:
    """Raises InvalidArgument for a use that the backend does not support."""
    if options.fs_type:
        require_supported(options.fs_type)
    mount = None if options.block else Mount(fs_type=options.fs_type)
    if reason := instance.backend.unsupported(Capability(mode=CSI_ACCESS_MODES[options.access_mode], mount=mount)):
        raise InvalidArgument(reason)


def _claim(text: str) -> tuple[str, str] | None:
    namespace, slash, name = text.partition("/")
    if text and not (namespace and slash and name):
        raise ConfigError(f"--claim: {text!r} is not NAMESPACE/NAME")
    return (namespace, name) if text else None
