"""Print docs/parameters.md from the schemas of the core and of every backend in this repository."""

from __future__ import annotations

from collections.abc import Callable

from csi_multi.config.settings import Driver
from csi_multi.contract import Schema
from csi_multi.contract.params import camel, describe, fields, keys_of
from csi_multi.loading.loader import backend_classes
from csi_multi.node.mkfs_options import FilesystemOptions

KINDS = ("loop", "lvm", "ebs", "rbd")
HEAD = """\
# Parameters

Generated from the schemas by `make docs`. An unknown key or an invalid value is an error, which names the most
similar valid key or the valid values.

## Configuration file: `driver:`

{driver}
## StorageClass, for every backend

`backend` names an instance of the configuration file; without it `driver.default_backend` is used. Keys that
begin with `csi.storage.k8s.io/` belong to Kubernetes; `csi.storage.k8s.io/fstype` selects the filesystem: ext4, xfs or
btrfs; `fsType` means the same. A copy has the filesystem of its source. A volume has at least what mkfs needs: 300 MiB
for xfs, 109 MiB for btrfs. These are options of mkfs:

{filesystem}"""
SECTIONS = (
    ("Config", "Configuration file, in `backends.NAME:` together with `kind: {kind}`", str),
    ("Parameters", "StorageClass", camel),
    ("SnapshotParameters", "VolumeSnapshotClass", camel),
    ("MutableParameters", "VolumeAttributesClass", camel),
)


def table(schema: type[Schema], rename: Callable[[str], str]) -> str:
    """Return a Markdown table of a schema's fields."""
    many = {field.name: keys_of(field).replace(".*", "_N").replace("|", "`, `") for field in fields(schema)}
    rows = [
        f"| `{many[name] or rename(name)}` | {'string' if many[name] else kind} | {default} | {escaped(text)} |"
        for name, kind, default, text in describe(schema)
    ]
    head = ["| name | type | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows]) + "\n"


def escaped(text: str) -> str:
    """Return text in which Markdown sees no HTML."""
    return text.replace("<", "&lt;")


def main() -> None:
    print(HEAD.format(driver=table(Driver, str), filesystem=table(FilesystemOptions, camel)))
    for kind, backend in sorted(backend_classes(KINDS)[0].items()):
        print(f"## Backend `{kind}`\n")
        for name, title, rename in SECTIONS:
            schema = getattr(backend, name)
            if schema is not Schema:
                print(f"{title.format(kind=kind)}:\n\n{table(schema, rename)}")


if __name__ == "__main__":
    main()
