"""`python -m paceline.kernels`: build the library of kernels."""

import sys

from paceline.kernels.compiler import main

if __name__ == "__main__":
    sys.exit(main())
