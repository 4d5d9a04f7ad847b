"""The care of tables that live for years: are they still what they must be, and what keeps them so.

upgrading    tables of older store formats brought to today's, and back
verifying    the invariants of tables, checked on the tables themselves
forgetting   a key taken out of everything, with proof
retention    what `keep` in the contract says need not be kept, trimmed
maintenance  small files joined, files sorted by time, old ones removed
doctor       what is installed, reachable and writable
"""
