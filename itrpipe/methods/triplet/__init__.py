"""The online triplet loss."""
