"""spark-submit release.py PIPELINE RUN_ID UNTIL BY KEYS: publish what a person released (`special_runs.run_release`).

KEYS: a JSON list of the chosen keys, as the form names them; an empty list releases all that is held.
"""

import sys

from hindcast.cli.main import step

sys.exit(step("release", sys.argv[1:]))
