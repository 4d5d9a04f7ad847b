"""From offsets to the log: what is ingested, which fate each record has, and which run ingested it."""
