"""Commands, warnings, fingerprints and versions."""
