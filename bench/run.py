"""`make bench`: measure the driver and the bare operation, and print a table (needs root)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # so that the modules beside this file are `bench.*`
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # messages about stopped servers are noise here
    from bench.suite import main

    sys.exit(main())
