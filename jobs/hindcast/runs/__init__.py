"""What a run changes in each table, and how that is published."""
