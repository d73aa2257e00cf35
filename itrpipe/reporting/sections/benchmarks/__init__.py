"""How many hard negatives of benchmarks score below the captions that are true of the image."""
