"""One worker of a training, as a process: `python -m paceline.worker`."""

import sys

from paceline.worker_process import main

if __name__ == "__main__":
    sys.exit(main())
