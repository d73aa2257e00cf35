"""Files that `itrpipe export` writes beside a model's weights: a card, embeddings, rankings for other tools."""
