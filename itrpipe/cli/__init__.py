"""The command line: a command is in one place, its options above and what it does below.

`entry` runs them, `help` knows and shows them, `options` has what they share, `asked` plans and makes what they ask.
"""

from itrpipe.cli.entry import app, main

__all__ = ["app", "main"]
