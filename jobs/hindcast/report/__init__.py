"""What a run did, as JSON, as text and as a page."""
