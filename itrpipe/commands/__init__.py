"""What the commands do, as functions: `itrpipe.cli` reads their options and calls these."""
