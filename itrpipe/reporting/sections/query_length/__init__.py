"""Recall by how many words a caption has."""
