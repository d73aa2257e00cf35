"""How hard synthetic sentences are over training."""
