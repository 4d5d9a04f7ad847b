"""Kernels: operators of the `corrected` reading on Arrow tables, in Spark tasks, without Spark's rows.

The operators of `bitemporal` define what views mean, and run anywhere. Where a kernel can do the same (`eligibility`),
a view that has no rows yet is derived by slices of time (`time_slices`): a task reads what is valid in one
(`slice_reader`), sweeps through its moments once (`operators`, `sweeps`), and writes files of the table; one Delta
commit makes them visible (`staged_files`). What a later run changes is found by one task (`increments`).
"""
