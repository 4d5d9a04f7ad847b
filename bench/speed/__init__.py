"""Speed: each operation in Hindcast and in its peers, in turn within one run, on the same inputs with the same outputs.

    data -> operations (stream_table, table_table, of_table, reading) -> measuring -> results -> table, plot

`python -m bench.speed` is `make bench`, with `--quick` `make bench-quick`.
"""
