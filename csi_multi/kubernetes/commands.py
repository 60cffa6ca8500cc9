"""`csi-multi kubernetes`: what runs beside the driver on Kubernetes."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from ..logs.handlers import set_up_logging
from . import drain
from .api import Api
from .taint import StartupTaint


def startup_taint(options: argparse.Namespace) -> int:
    """Take the startup taint off nodes until SIGTERM."""
    set_up_logging("info", "auto")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the first process of a container gets no default
    StartupTaint(Api(), options.driver, options.key).run()
    return 0


def wait_for_drain(options: argparse.Namespace) -> int:
    """Wait until a drained node has none of the driver's volumes; 1 when the time was over."""
    set_up_logging("info", "auto")
    node = options.node or os.environ.get("NODE_NAME", "")  # a hook's words are not expanded by the kubelet
    return 0 if drain.wait(Api(), node, options.driver, options.kubelet, options.seconds) else 1
