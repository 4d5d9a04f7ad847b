"""Broker, Spark Connect server and Airflow as processes of this machine: no Docker."""
