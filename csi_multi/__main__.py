"""`python -m csi_multi` is `csi-multi`."""

import sys

from .commands.cli import main

sys.exit(main())
