"""How far apart embeddings lie."""
