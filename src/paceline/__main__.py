"""`python -m paceline` is `paceline`."""

import sys

from paceline.cli import main

sys.exit(main())
