"""spark-submit release.py PIPELINE RUN_ID UNTIL BY: a run that publishes what a person has released (steps.release)."""

import sys

from hindcast.cli import step

sys.exit(step("release", sys.argv[1:]))
