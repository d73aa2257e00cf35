"""What a trained model finds: as a library has it, in the terminal, and on local pages."""
