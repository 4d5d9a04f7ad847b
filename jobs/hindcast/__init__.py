"""Hindcast: Kafka topics replayed into bitemporal Delta tables."""

__version__ = "0.1.0"
