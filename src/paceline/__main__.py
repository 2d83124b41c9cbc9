"""`python -m paceline` is `paceline`."""

import sys

from paceline.cli.commands import main

sys.exit(main())
