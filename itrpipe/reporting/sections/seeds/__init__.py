"""What several seeds of a method tell together."""
