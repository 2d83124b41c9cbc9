"""Make `python -m paceline` the same as `paceline`."""

import sys

from paceline.cli.commands import main

sys.exit(main())
