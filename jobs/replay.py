"""spark-submit replay.py PIPELINE RUN NAME: do the step `replay` of a planned run."""

import sys

from hindcast.cli.main import step

sys.exit(step("replay", sys.argv[1:]))
