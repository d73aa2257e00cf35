"""Sentences whose words are coloured by how probably they are wrong."""
