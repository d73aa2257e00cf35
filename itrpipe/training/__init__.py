"""The training loop: batches, schedules, exact-step resume, validation and embeddings."""
