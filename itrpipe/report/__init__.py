"""From evaluations to one page, lines for the terminal, Markdown and JSON."""
