"""spark-submit preview.py PIPELINE UNTIL ONLY: what a run up to a moment (empty: of everything there is) would change,
or one about a table alone (empty: all).
"""

import sys

from hindcast.cli import step

sys.exit(step("preview", sys.argv[1:]))
