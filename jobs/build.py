"""spark-submit build.py PIPELINE RUN NAME: the step `build` of a planned run."""

import sys

from hindcast.cli import step

sys.exit(step("build", sys.argv[1:]))
