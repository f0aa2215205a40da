"""`python -m streampipe`."""

import sys

from streampipe.cli import main

sys.exit(main())
