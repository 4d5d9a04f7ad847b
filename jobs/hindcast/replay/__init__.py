"""From offsets to the log: what is claimed, which fate each record has, and which run brought it."""
