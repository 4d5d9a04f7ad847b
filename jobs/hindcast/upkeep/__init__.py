"""Upkeep: what keeps a warehouse fit for years, beside the runs that fill it."""
