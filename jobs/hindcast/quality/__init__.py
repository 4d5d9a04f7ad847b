"""Gates: Great Expectations on what is about to be published, and what is held back."""
