"""What each command of `hindcast` does, given its arguments (cli.py): the exit code."""
