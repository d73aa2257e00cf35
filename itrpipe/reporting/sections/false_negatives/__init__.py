"""How many candidates the runs take for false negatives, and which."""
