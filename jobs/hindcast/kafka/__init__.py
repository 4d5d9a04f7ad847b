"""Kafka: connections, offsets, and the records themselves."""
