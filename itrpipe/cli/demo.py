"""Run the demo."""

from dataclasses import dataclass

from itrpipe.cli.options import DataOptions, overrides_of


@dataclass
class Demo(DataOptions):
    """Teach a model left and right on the synthetic dataset: the same as run demo.

    Example: itrpipe demo
    """

    def run(self) -> None:
        from itrpipe.pipeline.reproduction import Options, run_recipe

        run_recipe(self.data, "demo", Options(overrides=overrides_of(self.settings, {}), dry_run=self.dry_run))
