"""spark-submit preview.py PIPELINE UNTIL: what a run up to a moment (empty: of everything there is) would change."""

import sys

from hindcast.cli import step

sys.exit(step("preview", sys.argv[1:]))
