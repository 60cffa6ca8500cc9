"""`csi-multi kubernetes`: the commands that run next to the driver on Kubernetes."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from ..logs.handlers import set_up_logging
from . import drain
from .api import KubernetesApi
from .taint import StartupTaint


def startup_taint(options: argparse.Namespace) -> int:
    """Remove the startup taint from nodes until SIGTERM."""
    set_up_logging("info", "auto")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the first process of a container has no default handler
    StartupTaint(KubernetesApi(), options.driver, options.key).run()
    return 0


def wait_for_drain(options: argparse.Namespace) -> int:
    """Wait until a node that is drained has none of the driver's volumes; return 1 when the time was over."""
    set_up_logging("info", "auto")
    node = options.node or os.environ.get("NODE_NAME", "")  # the kubelet does not expand the arguments of a hook
    api = KubernetesApi()
    return 0 if drain.wait_until_unstaged(api, node, options.driver, options.kubelet, options.seconds) else 1
