"""Print docs/parameters.md from the schemas of the core and of every backend in this repository."""

from __future__ import annotations

from csi_multi.commands.parameters import reference, table
from csi_multi.config.settings import Driver
from csi_multi.contract.params import camel
from csi_multi.loading.loader import backend_classes
from csi_multi.node.encryption_options import EncryptionOptions
from csi_multi.node.mkfs_options import FilesystemOptions
from csi_multi.node.trim_options import TrimOptions

KINDS = ("loop", "lvm", "ebs", "rbd")
HEAD = """\
# Parameters

Generated from the schemas by `make docs`; `csi-multi parameters KIND` prints the part of any installed backend. An
unknown key or an invalid value is an error, which names the most similar valid key or the valid values.

## Configuration file: `driver:`

{driver}
## StorageClass, for every backend

`backend` names an instance of the configuration file; without it `driver.default_backend` is used. Keys that
begin with `csi.storage.k8s.io/` belong to Kubernetes; `csi.storage.k8s.io/fstype` selects the filesystem: ext4, xfs or
btrfs; `fsType` means the same. A copy has the filesystem of its source. A volume has at least what mkfs needs: 300 MiB
for xfs, 109 MiB for btrfs. These are options of mkfs:

{filesystem}
These are about [encryption](encryption.md):

{encryption}
This is about [trim](trim.md):

{trim}"""


def main() -> None:
    print(
        HEAD.format(
            driver=table(Driver, str),
            filesystem=table(FilesystemOptions, camel),
            encryption=table(EncryptionOptions, camel),
            trim=table(TrimOptions, camel),
        )
    )
    print("\n".join(reference(kind, backend) for kind, backend in sorted(backend_classes(KINDS)[0].items())))


if __name__ == "__main__":
    main()
