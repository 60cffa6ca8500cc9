"""Parameters of ceph-csi for what this driver does not do, each with what to do instead."""

from __future__ import annotations

PREFIX = "the driver names its images itself, so that a repeated request finds the image of the first; leave it out"
ENCRYPTION = (
    "the driver encrypts block devices with LUKS2; leave it out, and set encryption: luks2 (docs/encryption.md)"
)
LIMITS = (
    "the driver limits no I/O; leave it out, and for rbd-nbd let Ceph limit it: rbd config image set ... "
    "rbd_qos_iops_limit"
)
LIMIT_KEYS = (
    *(
        f"{bound}{what}{unit}"
        for unit in ("Iops", "Bps")
        for what in ("", "Read", "Write")
        for bound in ("base", "max")
    ),
    *("iopsPerGiB", "readIopsPerGiB", "writeIopsPerGiB", "bpsPerGiB", "readBpsPerGiB", "writeBpsPerGiB"),
    "baseVolSizeBytes",
)
UNSUPPORTED = {
    "volumeNamePrefix": PREFIX,
    "mkfsOptions": "each option of mkfs has a parameter, blockSize, inodeSize and others (docs/parameters.md)",
    **dict.fromkeys(("encryptionKMSID", "encryptionType", "integrityMode"), ENCRYPTION),
    **dict.fromkeys(LIMIT_KEYS, LIMITS),
}
