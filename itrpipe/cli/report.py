"""Report on the evaluated runs of a dataset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from itrpipe.cli.options import File, PlanOptions, Text, overrides_of
from itrpipe.cli.request import Request
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.models.declaration import canonical_backbone
from itrpipe.pipeline.evaluations import evaluations_of, evaluations_of_two
from itrpipe.pipeline.models import home_of
from itrpipe.pipeline.planning import pinned_step
from itrpipe.stages.base import load_stage
from itrpipe.stages.report import MARKDOWN
from itrpipe.storage.disk import require_writable, write_text


@dataclass
class Report(PlanOptions):
    """Write one HTML page over all evaluated runs of a dataset, or over two models.

    --compare shows which queries one of the two models answers better, and in which settings they differ.

    --into puts the table of results between the lines <!-- itrpipe report DATASET --> and
    <!-- end of itrpipe report -->; with --backbone, the first is <!-- itrpipe report DATASET BACKBONE -->.

    Example: itrpipe report --dataset scenes
    """

    backbone: Annotated[Text, Option("--backbone", "-b", help="Compare models of this backbone only.")] = None
    compare: Annotated[
        tuple[str, str] | None,
        Option(metavar="A B", help="Only B against A, else all models: names, or METHOD.BACKBONE[.sN]."),
    ] = None
    into: Annotated[File, Option(metavar="FILE", help="Markdown file whose table of results is renewed.")] = None

    def run(self) -> Path:
        backbone = self.backbone
        into = self.into
        if self.compare is not None and (backbone is not None or into is not None):
            raise UsageError("--compare has two models; leave out --backbone and --into")
        homes = {home_of(self.data, each) for each in self.compare or ()}
        if "dataset" not in self.given and len(homes) == 1:
            self.dataset = homes.pop() or self.dataset
        request = Request(*self.where, overrides_of(self.settings, {}), dry_run=self.dry_run)
        place = self.dataset
        if backbone is not None:
            backbone = canonical_backbone(backbone)
            place += f" {backbone}"
        if into is not None:
            _with_tables(into, place, "")  # refuses a document without a place for the table
            require_writable(into, "--into")
        definition = request.planner.definition
        evaluations = evaluations_of(self.data, self.dataset, definition, backbone)
        settings: dict[str, Any] = {}
        if self.compare is not None:
            evaluations, settings["compare"] = evaluations_of_two(self.compare, evaluations, definition)
        read = set()
        inputs = {}
        for manifest in evaluations:
            read.update(each.name for each in manifest.inputs.values())
            step = pinned_step(request.root, manifest)
            inputs[step.location.name] = step
        trainings = definition.named_trainings()
        settings["names"] = sorted((folder, name) for folder, name in trainings.items() if folder in read)
        request.plan("report", inputs=inputs, **settings)
        folder = request.run()
        if request.dry_run:
            return folder
        load_stage("report").show(folder, request.reporter)
        if into is not None:
            tables = (folder / MARKDOWN).read_text(encoding="utf-8")
            write_text(into, _with_tables(into, place, tables))
            request.reporter.say(f"table: {into}")
        return folder


def _with_tables(path: Path, place: str, tables: str) -> str:
    """Return a document with its tables of a dataset, or of one backbone on it, replaced.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is no text, or has no place for the tables.
    """
    from itrpipe.report.page import BEGIN, END, insert_tables

    if not path.is_file():
        raise MissingInputError(f"--into {path} is not there; name a Markdown file")
    try:
        document = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"--into {path} is not UTF-8 at byte {error.start}; name a Markdown file") from None
    changed = insert_tables(document, place, tables)
    if changed is None:
        raise DataError(
            f"--into {path} does not say where the table belongs; write two lines into it: {BEGIN.format(asked=place)} "
            f"and {END}"
        )
    return changed
