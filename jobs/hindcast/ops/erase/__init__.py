"""Erase a key, or some records, from everything that a pipeline has, with proof (docs/forget.md)."""
