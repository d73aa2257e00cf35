"""Help that lists what declarations have: methods, backbones, extractors, those of plug-ins too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    HelpFormatter = Any


def listing(stage: str, **tables: str) -> type[TyperCommand]:
    """A command whose help has a list of what the declaration of a stage has.

    Args:
        stage: name.
        tables: `conf` or `defaults` -> heading of its list.
    """

    class Listing(TyperCommand):
        def format_help_text(self, ctx: Any, formatter: HelpFormatter) -> None:
            from itrpipe.config import described

            super().format_help_text(ctx, formatter)
            for table, heading in tables.items():
                with formatter.section(heading):
                    formatter.write_dl(described(stage, table))

    return Listing
