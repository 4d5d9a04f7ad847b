"""spark-submit replay.py PIPELINE RUN NAME: the step `replay` of a planned run."""

import sys

from hindcast.cli import step

sys.exit(step("replay", sys.argv[1:]))
