"""spark-submit maintain.py PIPELINE: compact, cluster and vacuum a pipeline's tables."""

import sys

from hindcast.cli.main import step

sys.exit(step("maintain", sys.argv[1:]))
