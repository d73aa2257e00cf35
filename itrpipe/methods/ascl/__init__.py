"""AsCL."""
