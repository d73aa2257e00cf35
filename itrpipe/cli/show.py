"""Show a configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument

from itrpipe.cli.commands import BaseCommand
from itrpipe.cli.options import BackboneOption, DataOption, DatasetOption, SetOption, Text, overrides_of
from itrpipe.config import declared_stages, leaves, load_declaration, unknown
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.errors import UsageError
from itrpipe.pipeline.planning import Planner
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need
from itrpipe.training.settings import TrainSettings


@dataclass
class Show(BaseCommand):
    """Print a configuration with the origin of every value.

    Example: itrpipe show train aoq --backbone vsrn
    """

    stage: Annotated[str, Argument(help="Stage, such as train.")]
    conf: Annotated[Text, Argument(help="Configuration, such as aoq; without it all are listed.")] = None
    backbone: BackboneOption = None
    dataset: DatasetOption = EMBEDDED
    settings: SetOption = None
    data: DataOption = Path("data")

    def run(self) -> None:
        stage = self.stage.replace("-", "_")
        conf = self.conf
        if stage not in declared_stages():
            stages = [name.replace("_", "-") for name in declared_stages()]
            raise UsageError(unknown("stage", stage, stages))
        reporter = Reporter()
        declaration = load_declaration(stage)
        if conf is None:
            reporter.say(declaration.summary)
            if len(declaration.confs) > 1:
                for each in declaration.confs:
                    reporter.say(f"  itrpipe show {stage.replace('_', '-')} {each}")
                return
            (conf,) = declaration.confs
        planner = Planner(self.data, self.dataset, overrides_of(self.settings, {"backbone": self.backbone}))
        definition = None
        if stage == "extract":
            definition = planner.definition.features.get(conf)
        settings, execution, resolved = planner.configure(Need(stage, conf), definition)
        rows = dict(leaves(settings.model_dump(mode="json")))
        if isinstance(settings, TrainSettings):
            for key in settings.unused_options():
                rows.pop(key, None)
        width = max(map(len, rows), default=0)
        reporter.say(f"{stage} {conf}, dataset {self.dataset}", style="bold")
        for key, value in rows.items():
            reporter.say(f"  {key:<{width}}  {value!s:<24} {resolved.origins.get(key, 'default')}")
        reporter.say("execution (not part of the fingerprint)", style="bold")
        for key, value in leaves(execution.model_dump(mode="json")):
            reporter.say(f"  {key:<{width}}  {value}")
