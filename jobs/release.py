"""spark-submit release.py PIPELINE RUN_ID: publish what a person released (`special_runs.run_planned_release`).

The plan of the run, which Airflow's task `plan` stores, has the keys.
"""

import sys

from hindcast.cli.main import step

sys.exit(step("release", sys.argv[1:]))
