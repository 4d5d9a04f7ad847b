"""Kernels: an operator from Parquet files to Parquet files, in Spark tasks, without Spark's rows.

The operators of `bitemporal` define what views mean, and run anywhere. If a view has no rows yet and all its
expressions are plain columns (`eligibility`), the same operator runs as a kernel: each task takes a slice of time
(`time_slices`), reads what is valid in it (`slice_reader`), sweeps through its moments once (`operators`, `sweeps`),
and writes files of the table; one Delta commit makes them visible (`staged_files`).
"""
