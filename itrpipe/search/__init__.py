"""Search with a trained model: as a library has it, in the terminal, and on local pages."""
