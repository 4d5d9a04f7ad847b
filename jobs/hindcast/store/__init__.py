"""Delta tables: their places and formats, readers, writers, and commits that are made once."""
