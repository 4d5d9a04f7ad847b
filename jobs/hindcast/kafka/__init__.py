"""Kafka: how it is spoken to, which offsets there are, and the records themselves."""
