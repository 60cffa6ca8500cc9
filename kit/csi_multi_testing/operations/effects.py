"""Storage.effect of volumes, which may change in the background."""

from __future__ import annotations

from collections.abc import Mapping

from csi_multi.contract import Volume

from ..assertions import same
from ..context import CheckContext
from ..hooks import LIMIT
from ..waiting import wait_for


def model_of(t: CheckContext, mutable: Mapping[str, str]) -> Volume | None:
    """Return a volume that is created with these parameters; None where Storage.effect is not given."""
    return t.volume(mutable={**t.storage.mutable, **mutable}) if t.storage.effect else None


def expect_same_effect(t: CheckContext, volume: Volume, model: Volume | None, what: str) -> None:
    """Require that Storage.effect becomes the same for both volumes. `model` is from `model_of`."""
    effect = t.storage.effect
    if effect and model:
        found, wanted = wait_for(
            lambda: (effect(volume.handle), effect(model.handle)), lambda both: both[0] == both[1], LIMIT
        )
        same(found, wanted, f"{what}: Storage.effect, compared with a volume that was created so")
