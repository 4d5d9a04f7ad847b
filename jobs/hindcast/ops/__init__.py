"""Operations on projects, contracts and long-lived tables: create and test them, and keep them as they must be.

new_project  create a folder with a contract, its tests, a DAG file and a CI file (`hindcast init`)
contract_..  run the tests of a contract on given records, without a broker (`hindcast test`)
upgrade      bring tables of older store formats to today's, and back
verify       check the invariants of tables on the tables themselves
compare      compare a replayed view with the output topic of a live application
erase        remove a key from everything, with proof
retention    trim what `keep` in the contract does not retain
maintenance  join small files, sort files by time, remove old ones
doctor       check what is installed, reachable and writable
"""
