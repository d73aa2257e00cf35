"""Captions as scene graphs: objects, their attributes and the relations between them, with the words that say so."""
