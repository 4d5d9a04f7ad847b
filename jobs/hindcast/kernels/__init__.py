"""Kernels: an operator from Parquet files to Parquet files, in Spark tasks, without Spark's rows.

The operators of `corrected` are what views mean, and run anywhere. Where a view has no rows yet and all its expressions
are plain columns (`chosen`), the same operator runs as a kernel: each task takes a slice of time (`cuts`), reads what
is valid in it (`reading`), sweeps through its moments once (`operators`, `sweeps`), and writes files of the table; one
Delta commit makes them visible (`staged`).
"""
