"""How often the space that a filesystem does not use is given back to the storage, as a class says for any backend."""

from __future__ import annotations

from typing import Annotated

from ..contract.errors import InvalidArgument
from ..contract.model import Strings
from ..contract.params import Doc, Schema, camel, parse
from .encryption_options import EncryptionOptions

HOUR = 3600  # seconds
UNITS = {"h": HOUR, "d": 24 * HOUR}
WORDS = {"daily": "1d", "weekly": "7d"}


class TrimOptions(Schema, frozen=True):
    trim: (
        Annotated[
            str,
            Doc(
                "how often the node gives unused blocks of a mounted filesystem back to the storage: daily, weekly, or "
                "a number of hours or days, as 12h or 3d",
                pattern=r"^(daily|weekly|[1-9][0-9]{0,2}[hd])$",
            ),
        ]
        | None
    ) = None

    @property
    def seconds(self) -> int:
        """The time from one trim to the next; 0: never."""
        if self.trim is None:
            return 0
        text = WORDS.get(self.trim, self.trim)
        return int(text[:-1]) * UNITS[text[-1]]


KEYS = frozenset(camel(name) for name in TrimOptions.__struct_fields__)


def to_context(options: TrimOptions) -> dict[str, str]:
    return {"trim": options.trim} if options.trim else {}


def from_context(volume_context: Strings) -> TrimOptions:
    """Return the options in a volume context. Raises InvalidArgument for values that to_context never writes."""
    own = {key: value for key, value in volume_context.items() if key in KEYS}
    return parse(TrimOptions, own, "trim in volume_context")


def validate(options: TrimOptions, encryption: EncryptionOptions) -> None:
    """Raise InvalidArgument where a trim could give nothing back."""
    if options.trim and encryption.enabled and not encryption.encryption_discard:
        raise InvalidArgument(
            "parameters: 'trim' has no effect on an encrypted volume that keeps discards from the storage; set "
            'encryptionDiscard: "true", or remove trim'
        )
