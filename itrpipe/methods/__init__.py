"""One file per training method: which batch, which scores, which losses. A paper's algorithm, top to bottom."""
