"""What each command of `hindcast` does, given its arguments (main.py): the exit code."""
