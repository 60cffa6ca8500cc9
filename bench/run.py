"""`make bench`: measure the driver beside the bare operation and print a table (needs root)."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # so that the modules beside this file are `bench.*`
    from bench.suite import main

    sys.exit(main())
