"""Whether a few items are the answer to many queries."""
