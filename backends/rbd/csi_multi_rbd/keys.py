"""Whether a process has the instance's own key.

One file configures controller and nodes, and nodes may be kept without keys: there a keyring that is named and not
there counts as none. A controller without it does not work, and says so at every command.
"""

from __future__ import annotations

from pathlib import Path

from csi_multi.contract import Setting

from .config import Config


def at_hand(config: Config, setting: Setting) -> bool:
    """Asked each time: the file of a Secret may come later, and go."""
    return bool(config.keyring) and (setting.controller or Path(config.keyring).exists())
