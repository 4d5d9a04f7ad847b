"""What Spark's JVMs need beside Python packages: a Java runtime, jars, and a file of properties.

Standard library only, but for spark_parts.py: `make setup` imports this before there is anything else.
"""
