"""Whether a second round is worth it, told by round one alone."""
