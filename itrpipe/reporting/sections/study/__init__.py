"""Section of the page: what a second round gains in many settings."""
