"""What is told of a failure that is not ours."""

from __future__ import annotations

from hindcast.errors import cause


def test_of_a_failure_in_python_its_own_words_are_told() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "/x.py", line 3, in part\nValueError: no such column\n\n\tat org'
    )
    failure = Exception(f"An exception was thrown from the Python worker:\n{traceback}")
    assert cause(failure) == "ValueError: no such column"
    assert cause(Exception("something else\nValueError: no")) == "something else"
