"""The `corrected` reading: records to the plane, and operators on it. Pure: DataFrames in, DataFrames out."""
