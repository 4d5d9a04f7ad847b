"""spark-submit preview.py PIPELINE UNTIL ONLY: print what a run would change.

UNTIL: the moment up to which it would replay (empty: everything). ONLY: the one table that it is about (empty: all).
"""

import sys

from hindcast.cli.main import step

sys.exit(step("preview", sys.argv[1:]))
