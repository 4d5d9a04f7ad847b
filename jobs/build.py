"""spark-submit build.py PIPELINE RUN NAME: do the step `build` of a planned run."""

import sys

from hindcast.cli.main import step

sys.exit(step("build", sys.argv[1:]))
