"""A triplet loss with a smooth maximum."""
