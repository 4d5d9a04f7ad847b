"""The `corrected` reading, the default: records to the plane, and operators on it. Pure: DataFrames in, DataFrames out.

The `kafka` reading is in `streams/`. `engine/` has the same operators as kernels, for large views.
"""
