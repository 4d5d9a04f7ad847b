"""Archives: files of Kafka Connect's sinks, as the records of a topic that Kafka no longer has."""
