"""The care of tables that live for years: are they still what they must be, and what keeps them so.

upgrade      tables of older store formats brought to today's, and back
verify       the invariants of tables, checked on the tables themselves
doctor       what is installed, reachable and writable
maintenance  small files joined, files sorted by time, old ones removed
retention    what `keep` in the contract says need not be kept, trimmed
trimmed      what the ledger knows of records that were trimmed
forget       a key taken out of everything, with proof
"""
