"""spark-submit maintain.py PIPELINE: compacts, clusters and vacuums a pipeline's tables."""

import sys

from hindcast.cli import step

sys.exit(step("maintain", sys.argv[1:]))
