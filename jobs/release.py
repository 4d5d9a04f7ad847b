"""spark-submit release.py PIPELINE RUN_ID UNTIL BY KEYS: a run that publishes what a person releases (steps.release).

KEYS: a JSON list of the keys that were chosen, as the form names them; all that is held for an empty one.
"""

import sys

from hindcast.cli import step

sys.exit(step("release", sys.argv[1:]))
