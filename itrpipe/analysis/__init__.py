"""Questions about a trained model, one a file, and what they are answered with."""
