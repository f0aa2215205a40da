"""`python -m shardtools`."""

import sys

from shardtools.cli import main

if __name__ == "__main__":
    sys.exit(main())
