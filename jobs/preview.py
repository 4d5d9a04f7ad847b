"""spark-submit preview.py PIPELINE UNTIL ONLY RUN_ID: print what a run would change.

UNTIL: the moment up to which it would replay (empty: everything). ONLY: the one table that it is about (empty: all).
RUN_ID: of the DAG run whose report tab shows the same.
"""

import sys

from hindcast.cli.main import step

sys.exit(step("preview", sys.argv[1:]))
