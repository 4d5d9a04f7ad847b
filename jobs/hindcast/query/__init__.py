"""Queries on published tables: what was true at a moment, as known at a moment."""
