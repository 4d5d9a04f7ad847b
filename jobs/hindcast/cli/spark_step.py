"""spark-submit spark_step.py STEP ARGUMENTS: do one step of a pipeline in a session of its own.

The scripts in jobs/ do the same for the step that each is named after.
"""

if __name__ == "__main__":
    import sys

    from hindcast.cli.main import step

    sys.exit(step(sys.argv[1], sys.argv[2:]))
