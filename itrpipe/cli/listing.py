"""Help that lists what declarations have: methods, backbones, extractors, those of plug-ins too."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


def listing(stage: str, **tables: str) -> type[TyperCommand]:
    """A command whose help has a list of what the declaration of a stage has.

    Args:
        stage: name.
        tables: `conf` or `defaults` -> heading of its list.
    """

    class Listing(TyperCommand):
        """Adds the lists behind the text; they are read only when help is asked for."""

        def format_help_text(self, ctx: Any, formatter: Any) -> None:
            from itrpipe.declared import described

            super().format_help_text(ctx, formatter)
            for table, heading in tables.items():
                with formatter.section(heading):
                    formatter.write_dl(described(stage, table))

    return Listing
