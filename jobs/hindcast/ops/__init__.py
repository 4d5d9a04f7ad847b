"""Operations on long-lived tables: check them, and keep them as they must be.

upgrade      bring tables of older store formats to today's, and back
verify       check the invariants of tables on the tables themselves
compare      compare a replayed view with the output topic of a live application
erase        remove a key from everything, with proof
retention    trim what `keep` in the contract does not retain
maintenance  join small files, sort files by time, remove old ones
doctor       check what is installed, reachable and writable
"""
