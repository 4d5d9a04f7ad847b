"""What a run will do, fixed before it does anything; and the journal of what runs did."""
