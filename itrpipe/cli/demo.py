"""Run the demo."""

from __future__ import annotations

from itrpipe.cli.help import command
from itrpipe.cli.options import (
    DataOptions,
    overrides_of,
)


@command()
def demo(given: DataOptions) -> None:
    """Teach a model left and right on the synthetic dataset: the same as run demo.

    Example: itrpipe demo
    """
    from itrpipe.pipeline.reproduction import Options, run_recipe

    run_recipe(given.data, "demo", Options(overrides=overrides_of(given.settings, {}), dry_run=given.dry_run))
