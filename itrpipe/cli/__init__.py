"""The command line: a command is a file of its name; its fields are the options and its `run` does the work.

`entry` runs the commands, `commands` lists and shows them, `options` has the options that they share, and `request`
plans and makes the artifacts that they need.
"""

from itrpipe.cli.entry import app, main

__all__ = ["app", "main"]
