"""spark-submit maintain.py PIPELINE ...: compact, cluster and vacuum the tables of pipelines."""

import sys

from hindcast.cli.main import step

sys.exit(step("maintain", sys.argv[1:]))
