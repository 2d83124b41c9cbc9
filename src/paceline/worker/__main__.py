"""`python -m paceline.worker`: the process that a worker is."""

import sys

from paceline.worker.main import main

if __name__ == "__main__":
    sys.exit(main())
