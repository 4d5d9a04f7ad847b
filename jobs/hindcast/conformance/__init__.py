"""Conformance vectors run through the operators that the jobs use (see `runner` and the CLI's `conformance`)."""
