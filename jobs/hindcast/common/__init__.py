"""Common ground of all rooms: errors, settings, Spark sessions, step events, the clock."""
