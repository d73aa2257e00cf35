"""Mean words against mean regions."""
