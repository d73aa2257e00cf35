"""What is asked of a trained model: one question a file."""
