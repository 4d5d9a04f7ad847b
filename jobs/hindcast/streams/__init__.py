"""The `kafka` reading: what a Kafka Streams topology emits, record for record, given its inputs in processing order.

Most modules are operators. `spec_of_view`, `spec`, `task_rows` and `task` run them for a view; `spark_adapter` runs
tasks in Spark. An operator works on the records of one task (one partition of each input, as Kafka Streams pairs them),
as arrays of integers: keys as codes that sort as the keys' bytes do, values as row numbers, times in milliseconds. It
takes the state that an earlier run left, and returns its results and the state for the next run.
"""
