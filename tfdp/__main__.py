"""The program `python -m tfdp`, the same as the command `tfdp`."""

import sys

from tfdp.tools.cli import main

sys.exit(main())
