"""The `kafka` reading: what a Kafka Streams topology emits, record for record, given its inputs in processing order.

Each module is an operator. Its records are those of one task (one partition of each input, as Kafka Streams pairs
them), as arrays of integers: keys as codes that sort as the keys' bytes do, values as row numbers, times in
milliseconds. An operator takes what an earlier run has kept, and returns what is emitted and what is to be kept.
"""
