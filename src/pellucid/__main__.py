"""`python -m pellucid` runs the command line."""

import sys

from pellucid.cli import main

if __name__ == "__main__":
    sys.exit(main())
