"""The stage that scores the candidates of mined lists by one judge."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field

from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.encoders.folders import require_model
from itrpipe.engine.run import Device, SharedExecution
from itrpipe.errors import UsageError
from itrpipe.features.declaration import first_model
from itrpipe.judging.declaration import judge_name
from itrpipe.models.declaration import LONGEST
from itrpipe.stages.base import Job, Need, Stage, Step
from itrpipe.stages.mine_negatives import SEARCH, search_label, search_need, searched_needs
from itrpipe.training.search_settings import JudgeSettings

SIDES = {"captions": ("text",), "dual": ("text", "vision")}
"""Kind of a judge -> sides of its model that encode everything once."""
READING: dict[str, dict[str, Any]] = {"text": {"clean_captions": False, "max_words": LONGEST}, "vision": {}}
"""Side -> how it reads: captions as long as its tokenizer lets them be."""


class JudgeExecution(SharedExecution):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: `auto` takes CUDA when there is one.
        block: pairs of a part; 0 chooses it by the judge.
    """

    device: Device
    block: int = Field(ge=0)


class JudgeStage(Stage):
    """Asks a judge about every pair of mined lists."""

    settings = JudgeSettings
    execution = JudgeExecution
    has_versions = False  # other scores are of another judge

    def label(self, conf: str, settings: JudgeSettings) -> str:
        """Return the name of the search with the judge's kind."""
        return search_label("exact", settings, judge_name(settings.judge).kind)

    def needs(self, settings: JudgeSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for the lists and what their search has read, and for vectors or graphs of the judge's own."""
        needs = searched_needs(settings, definition)
        needs[SEARCH] = search_need(settings)
        judge = judge_name(settings.judge)
        if judge.kind == "graphs":
            needs["parse"] = Need("parse", "rules")
        if judge.pretrained:
            for side in SIDES.get(judge.kind, ()):
                encoder = {"encoder": judge.pretrained, "revision": settings.revision, **READING[side]}
                needs[side] = Need("encode", side, encoder)
        return needs

    def check(self, step: Step) -> None:
        """Refuse a model that is neither here nor on the hub."""
        settings: Any = step.settings
        judge = judge_name(settings.judge)
        if judge.pretrained:
            require_model(judge.pretrained, settings.revision, SIDES.get(judge.kind, ("vision", "text")))

    def run(self, job: Job) -> None:
        """Write pairs.arrays and scale.json.

        Raises:
            UsageError: the judge reads captions, and there are no texts; see also `open_judge`.
            DataError: see `JudgedPairs`.
        """
        from itrpipe.judging.pairs import JudgedPairs
        from itrpipe.mining.judged import candidate_pairs, write_scores
        from itrpipe.training.material import open_material

        settings = job.settings
        judge = judge_name(settings.judge)
        if judge.kind != "fne" and job.inputs["prepare"].manifest.metrics.get("captions_with_text") == 0:
            raise UsageError(f"--judge {judge} reads captions, of which the given files hold no text; leave it out")
        folders = job.input_folders()
        folders["model"] = first_model(job.inputs).folder.absolute()
        pairs = candidate_pairs(folders[SEARCH])
        opening = partial(open_material, folders, looks=judge.looks)
        work = JudgedPairs(
            judge,
            opening,
            pairs.image_rows,
            pairs.caption_rows,
            job.execution.device,
            settings.revision,
            job.execution.block,
        )
        scores, scale = work.join(job.made(work).paths)
        write_scores(job.folder, pairs, scores, scale)
        job.metrics |= {"pairs": len(scores), "mismatch": scale.mismatch, "match": scale.match}
