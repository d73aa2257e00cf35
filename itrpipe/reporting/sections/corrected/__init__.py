"""What is measured beside what people's judgements make of it."""
