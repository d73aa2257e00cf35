"""Where negatives come from at training time."""
