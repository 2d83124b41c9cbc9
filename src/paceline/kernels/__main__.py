"""`python -m paceline.kernels`: build the library of kernels."""

import sys

from paceline.kernels.library import main

if __name__ == "__main__":
    sys.exit(main())
