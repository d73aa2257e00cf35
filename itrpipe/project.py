"""The chain from Python: every method of a `Project` does what the command of its name does, by the same plan.

    >>> project = Project("data")
    >>> project.prepare(name="scenes", train=200, val=50, test=50)
    >>> project.extract(features="hog")
    >>> project.train("contrastive-batch", name="first", backbone="vsepp", epochs=2)
    >>> project.evaluate("first").metrics["rsum"]

A keyword is an option of the command, with `_` for `-`; any other keyword is a setting, as `--set` takes it. What is up
to date is not made again, what was interrupted goes on, and errors are those of `itrpipe.errors`.
"""

from __future__ import annotations

import html
import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.cli.commands import Commands
from itrpipe.cli.entry import app
from itrpipe.config import leaves
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import load_stage
from itrpipe.storage.artifact import HISTORY, METRICS, Manifest, open_artifact
from itrpipe.storage.disk import read_json

if TYPE_CHECKING:
    import pyarrow as pa

    from itrpipe.search.gallery import SearchAnswers
    from itrpipe.search.model import RetrievalModel


@dataclass(eq=False)
class Result:
    """A finished artifact; in a notebook it shows itself.

    Attributes:
        folder: its files.
    """

    folder: Path

    @cached_property
    def manifest(self) -> Manifest:
        """Return the record of how it was made: settings, inputs, versions, times.

        Raises:
            DataError: a file of it is damaged.
        """
        return open_artifact(self.folder)

    @property
    def name(self) -> str:
        """Return the name of the model that was trained, or the label of the artifact."""
        dataset = self.folder.parents[1]
        models = load_definition(dataset.parent, dataset.name).named_trainings()
        return models.get(self.folder.name, self.manifest.label)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Return figures by name: `rsum`, `t2i_r1`, … in percent of an evaluation, else those that a command prints."""
        if METRICS not in self.manifest.outputs:
            return self.manifest.metrics
        figures = read_json(self.folder / METRICS)["full"]
        return {name: figure["value"] for name, figure in figures.items()}

    @property
    def tables(self) -> list[str]:
        """Return the names that `table` takes."""
        files = [name for name in self.manifest.outputs if name.endswith(".parquet")]
        return sorted(name.removesuffix(".parquet") for name in files)

    def table(self, name: str) -> pa.Table:
        """Read one of its tables; `.to_pandas()` of it needs pandas.

        Args:
            name: one of `tables`, such as `history` of a training or `texts_for_images` of mined lists.

        Raises:
            MissingInputError: there is no such table.
            DataError: it is damaged.
        """
        import pyarrow.parquet as pq

        if name not in self.tables:
            known = ", ".join(self.tables) or "none"
            raise MissingInputError(f"{self.folder} has no table {name!r}; known: {known}")
        return pq.read_table(self.folder / f"{name}.parquet")

    def load(self, device: str = "auto") -> RetrievalModel:
        """Open the model that was trained, see `itrpipe.load`."""
        from itrpipe.search.model import load

        return load(self.folder, device=device)

    def __repr__(self) -> str:
        return f"<{self.manifest.stage} {self.name}: {self.folder}>"

    def __str__(self) -> str:
        """Return the tables that the command shows of it, or else its figures line by line."""
        shown = io.StringIO()
        load_stage(self.manifest.stage).show(self.folder, Reporter(SafeConsole(file=shown)))
        text = shown.getvalue().rstrip()
        if text:
            return text
        figures = [f"{name}: {value}" for name, value in self.metrics.items()]
        return "\n".join([repr(self), *figures])

    def _repr_html_(self) -> str:
        if "index.html" in self.manifest.outputs:
            document = html.escape((self.folder / "index.html").read_text(encoding="utf-8"))
            return f'<iframe srcdoc="{document}" style="width: 100%; height: 800px; border: 0"></iframe>'
        shown = f"<pre>{html.escape(str(self))}</pre>"
        if not (self.folder / HISTORY).exists():
            return shown
        from matplotlib.ticker import MaxNLocator

        from itrpipe.report.plots import panel, svg

        title = "RSum on the validation split, by epoch"
        history = self.table("history")
        figure, axes = panel()
        axes.plot(history["epoch"], history["val_rsum"])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(title)
        return f'{shown}<div style="max-width: 480px">{svg(figure, "val-rsum", title)}</div>'


class Project:
    """A data folder, and a dataset in it.

    Args:
        data: the folder of all artifacts; made when something is written.
        dataset: name of the dataset; None for the only one there is.

    Example: see `docs/library.md`.
    """

    def __init__(self, data: str | os.PathLike[str] = "data", dataset: str | None = None) -> None:
        self.data = Path(data)
        self.dataset = dataset

    def prepare(self, source: str | os.PathLike[str] | None = None, name: str | None = None, **options: Any) -> Result:
        """Read captions, check images, and make splits; what follows means this dataset.

        Args:
            source: file of captions or folder of the dataset; None draws scenes, or takes that of a known dataset.
            name: of the dataset.
            options: further options and settings of `itrpipe prepare`, such as `train=2000`, or
                `columns={"image": "photo", "captions": ["caption_0", "caption_1"]}` of a table whose columns are not
                recognised.

        Raises:
            ItrpipeError: see `itrpipe.errors`; one of its kinds says that images could not be used.
        """
        self.dataset = name or self.dataset
        return self.run("prepare", source=source, **options)

    def extract(self, features: str | None = None, **options: Any) -> Result:
        """Write visual features of every image.

        Args:
            features: extractors, as in `"frcnn+resnet"`, or the importer of the files that `from_` names.
            options: of `itrpipe extract`.
        """
        return self.run("extract", features=features, **options)

    def train(
        self, method: str | None = None, name: str | None = None, like: str | Result | None = None, **options: Any
    ) -> Result:
        """Train a model, with everything upstream that is missing.

        Args:
            method: as in `itrpipe list methods`; None for that of `like`.
            name: to call the model by from now on.
            like: a model whose settings it begins with.
            options: of `itrpipe train`, and settings, such as `negatives="mined"` or `epochs=20`.
        """
        return self.run("train", method=method, name=name, like=like, **options)

    def mine(self, model: str | Result | None = None, **options: Any) -> Result:
        """Find the hardest negatives of the whole training set by a model; `itrpipe.mine` takes any vectors.

        Args:
            model: its name; None for the only one.
            options: of `itrpipe mine-negatives`.
        """
        return self.run("mine-negatives", model=model, **options)

    def evaluate(self, model: str | Result | None = None, **options: Any) -> Result:
        """Measure a model on a split; `itrpipe.evaluate` takes any vectors.

        Args:
            model: its name; None for the only one.
            options: of `itrpipe evaluate`.
        """
        return self.run("evaluate", model=model, **options)

    def report(self, *compare: str | Result, **options: Any) -> Result:
        """Write one page over all evaluated models.

        Args:
            compare: two models, to compare the second with the first.
            options: of `itrpipe report`.
        """
        return self.run("report", compare=compare or None, **options)

    def search(self, sentence: str | None = None, model: str | Result | None = None, **options: Any) -> SearchAnswers:
        """Find images for a sentence, or what fits to `image=`.

        Args:
            sentence: that describes the image.
            model: its name; None for the only one.
            options: of `itrpipe search`.
        """
        sentences = [sentence] if sentence else []
        return self.run("search", *sentences, model=model, **options)

    def run(self, command: str, *arguments: str, **options: Any) -> Any:
        """Run any command, such as `project.run("synthesize", by="graph-edits")`.

        Returns:
            The artifact that it made, where it makes one.

        Raises:
            UsageError: an option or a setting is wrong, or the command starts processes, which Python cannot.
            ItrpipeError: see `itrpipe.errors`.
        """
        if options.get("devices"):
            raise UsageError("devices starts this process again; train on several with `itrpipe train --devices`")
        line = [command, *_as_words(command, {"data": self.data, "dataset": self.dataset}, options)]
        if arguments:
            line += ["--", *arguments]
        before = sys.argv
        sys.argv = ["itrpipe", *line]  # what the manifest records
        try:
            made = app(line, standalone_mode=False)
        finally:
            sys.argv = before
        return Result(made) if isinstance(made, Path) else made


def _as_words(command: str, where: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Return options and settings as the words of a command line; `where`, as far as the command has such options."""
    reader = Commands().get_command(None, command)
    if reader is None:
        raise UsageError(f"there is no command {command!r}; `itrpipe --help` lists them")
    known = {}
    for parameter in reader.params:
        for flag in parameter.opts:
            known[flag.lstrip("-").replace("-", "_")] = parameter, flag
    chosen = {name: value for name, value in where.items() if name in known}
    words = []
    for name, value in {**chosen, **options}.items():
        parameter, flag = known.get(name.rstrip("_"), (None, ""))
        if value is None:
            continue
        if parameter is None:
            for key, setting in leaves({name: value}):
                text = str(setting) if isinstance(setting, Path) else json.dumps(setting)
                words += ["--set", f"{key}={text}"]
        elif value is False:
            words += parameter.secondary_opts
        elif value is True:
            words.append(flag)
        else:
            values = value if isinstance(value, list | tuple) else [value]
            texts = []
            for each in values:
                texts.append(each.name if isinstance(each, Result) else str(each))
            if parameter.multiple:
                for text in texts:
                    words += [flag, text]
            else:
                words += [flag, *texts]
    return words
