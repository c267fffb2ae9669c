"""`python -m clover_rt`: the command line where its script is not on the path."""

import sys

from clover_rt.cli import main

if __name__ == "__main__":
    sys.exit(main())
