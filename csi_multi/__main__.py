"""`python -m csi_multi` is `csi-multi`."""

import sys

from .cli import main

sys.exit(main())
