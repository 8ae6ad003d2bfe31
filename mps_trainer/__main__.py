"""`python -m mps_trainer`, the same as the command `mps-trainer`."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
