"""What EC2 takes as a tag, and which keys of tags are the driver's own.

EC2 itself takes any character; the set here is what all of AWS allows, so that a tag can be used in
policies, cost reports and tag editors too.
"""

from __future__ import annotations

import unicodedata

MOST = 50  # tags per resource
KEY = 128  # characters
VALUE = 256  # characters

PREFIX = "csi-multi/"
IOPS_PER_GB = f"{PREFIX}iops-per-gb"  # kept up when the volume grows
VOLUME_NAME = "CSIVolumeName"
SNAPSHOT_NAME = "CSIVolumeSnapshotName"
CREATED_FOR = "kubernetes.io/created-for/"
CLUSTER = "kubernetes.io/cluster/"
AWS = "aws:"

_OWN = (PREFIX, CREATED_FOR, CLUSTER)
_MARKS = frozenset(" _.:/=+-@")


def objection(key: str, value: str = "") -> str:
    """Why a user cannot have this tag; "" if nothing is against it."""
    if not key:
        return "a tag needs a key"
    if key in (VOLUME_NAME, SNAPSHOT_NAME) or key.startswith(_OWN):
        return f"tag {key!r} belongs to the driver; choose another key"
    if key.lower().startswith(AWS):
        return f"tag {key!r}: keys that begin with {AWS!r} belong to AWS; choose another key"
    if len(key) > KEY:
        return f"tag {key!r}: a key has at most {KEY} characters, not {len(key)}"
    if len(value) > VALUE:
        return f"tag {key!r}: a value has at most {VALUE} characters, not {len(value)}"
    if bad := sorted({char for char in key + value if not _allowed(char)}):
        return f"tag {key!r}: {bad[0]!r} is not allowed; letters, digits, spaces and _ . : / = + - @ are"
    return ""


def fit(text: str) -> str:
    """Return the text as a value that AWS takes: cut, and "_" for each character that it does not allow."""
    value = "".join(char if _allowed(char) else "_" for char in text[:VALUE]).strip()
    return "_" + value[1:] if value.lower().startswith(AWS) else value


def _allowed(char: str) -> bool:
    """Beyond the first plane a character may count as two, so none of those."""
    return char in _MARKS or (char <= "\uffff" and unicodedata.category(char)[0] in "LN")
