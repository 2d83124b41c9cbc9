"""`python -m paceline.kernels`: build the library of kernels."""

import sys

from paceline.kernels.build import main

if __name__ == "__main__":
    sys.exit(main())
