"""What is told of a failure that is not ours."""

from __future__ import annotations

import pytest

from hindcast.common.errors import describe_cause


@pytest.mark.parametrize("end", [":", ". Please see the stack trace below."])
def test_of_a_failure_in_python_its_own_words_are_told(end: str) -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "/x.py", line 3, in part\nValueError: no such column\n\n\tat org'
    )
    failure = Exception(f"An exception was thrown from the Python worker{end}\n{traceback}")
    assert describe_cause(failure) == "ValueError: no such column"
    assert describe_cause(Exception("something else\nValueError: no")) == "something else"
