"""A trained model as a library has it: photographs and sentences in, embeddings and scores out."""
