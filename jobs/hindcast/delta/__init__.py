"""Tables of Delta: where they lie, what form they have, how they are read, and commits that are made once."""
