"""`python -m itrpipe` is the command `itrpipe`."""

import os
import sys


def _leave_working_folder() -> None:
    """Takes back what `python -m` did: the working folder is where modules are looked for first.

    It stays where itrpipe itself comes from there, as in a checkout. Nothing may be imported before this.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path and sys.path[0] != package:
        del sys.path[0]


_leave_working_folder()

from itrpipe.cli import main  # noqa: E402

main()
