"""The `kafka` reading: what a Kafka Streams topology emits, record for record, given its inputs in processing order.

Most modules are operators; `of_view`, `form`, `rows` and `task` bring a view to them, `on_spark` brings tasks to Spark.
An operator's records are those of one task (one partition of each input, as Kafka Streams pairs them), as arrays of
integers: keys as codes that sort as the keys' bytes do, values as row numbers, times in milliseconds. It takes what an
earlier run has kept, and returns what is emitted and what is to be kept.
"""
