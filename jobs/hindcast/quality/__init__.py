"""Gates: Great Expectations on a change before it is published, and the rows that are held back."""
