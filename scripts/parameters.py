"""Print docs/parameters.md from the schemas of the core and of every backend in this repository."""

from csi_multi.config import Driver
from csi_multi.node.options import FilesystemOptions
from csi_multi.params import Schema, camel, describe
from csi_multi.registry import backend_classes

KINDS = ("loop",)


def table(schema: type[Schema], rename: object = str) -> str:
    """Return a Markdown table of a schema's fields."""
    rows = [f"| `{rename(name)}` | {kind} | {default} | {text} |" for name, kind, default, text in describe(schema)]  # type: ignore[operator]
    if not rows:
        return "None.\n"
    return "\n".join(["| name | type | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def main() -> None:
    print("# Parameters\n\nGenerated from the schemas by `make docs`; an unknown key or a bad value is refused.\n")
    print("## Configuration file: `driver:`\n")
    print(table(Driver))
    print("## StorageClass: every backend\n")
    print("| name | meaning |\n| --- | --- |\n| `backend` | name of the instance in the configuration file;")
    print("default: `driver.default_backend` |\n".replace("default", "default"))
    print("mkfs options, for the filesystem named by `csi.storage.k8s.io/fstype` (ext4, xfs or btrfs):\n")
    print(table(FilesystemOptions, camel))
    classes, _ = backend_classes(KINDS)
    for kind, backend in sorted(classes.items()):
        print(f"## Backend `{kind}`\n\nConfiguration file, below `backends.<name>:` with `kind: {kind}`:\n")
        print(table(backend.Config))
        print("StorageClass:\n")
        print(table(backend.Parameters, camel))
        print("VolumeSnapshotClass:\n")
        print(table(backend.SnapshotParameters, camel))
        print("VolumeAttributesClass:\n")
        print(table(backend.MutableParameters, camel))


if __name__ == "__main__":
    main()
