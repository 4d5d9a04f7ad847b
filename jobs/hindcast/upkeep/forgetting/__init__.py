"""Erasure: a key, or some records, taken out of everything that a pipeline has, with proof (docs/forget.md)."""
