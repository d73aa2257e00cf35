"""The stage of `itrpipe mine-negatives`: hardest negatives of the training set, in both directions, by a model."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.errors import UsageError
from itrpipe.features.declaration import first_model, is_given
from itrpipe.judging.declaration import judge_name
from itrpipe.models.declaration import settings_of
from itrpipe.printable import quantity
from itrpipe.stages.base import Job, Need, Stage, Step, prepare_need
from itrpipe.stages.embeddings import embeddings_need
from itrpipe.storage.artifact import HISTORY, STATISTICS
from itrpipe.training.search_settings import JUDGE_INPUT, MineExecution, MineSettings, SearchSettings
from itrpipe.training.settings import ModelName, run_label

TRAIN = "train"
CORPUS = "corpus.arrays"
FURTHER = "further_candidates.json"
_BYTES_PER_PLACE = 32
"""Bytes on the disk: 8 in the end, and 12 in the parts of each of two maps."""
SEARCH = "mine_negatives"
"""Input of judged lists, and of judges: the lists of the search."""


def search_label(conf: str, settings: SearchSettings, *judges: str) -> str:
    """Return the label of lists: `exact`, or `approximate` by an index, the models, and the kinds of judges."""
    search = conf if settings.index == "flat" else "approximate"
    models = settings.backbone
    if settings.rescore_with:
        models += f"+{settings.rescore_with}"
    label = f"{search}.{run_label(settings.method, models, settings.seed)}"
    return "+".join([label, *judges])


def search_need(settings: SearchSettings) -> Need:
    """Return the need of the lists as a search finds them, without judges and decisions."""
    of_search = settings.model_dump(include={*SearchSettings.model_fields})
    return Need("mine_negatives", "exact", of_search, without=("judges", "decisions"))


def searched_needs(settings: SearchSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """Return the needs of a search: the captions and the mining model's embeddings.

    Raises:
        UsageError: the mining model has no embeddings.
    """
    if not is_given(settings.backbone) and not settings_of(settings.backbone).embeds:
        raise UsageError(
            f"{settings.backbone} compares regions with words and has no embeddings to search; mine with another "
            "backbone, such as vsrn, and train with `--negatives-from vsrn`"
        )
    training: dict[str, Any] = {"features": settings.features}
    if settings.train_share != 1.0:
        training["train_share"] = settings.train_share
    model = ModelName(settings.method, settings.backbone, settings.seed)
    need = embeddings_need(model, TRAIN, **training)
    return {"prepare": prepare_need(definition, TRAIN), need.stage: need}


class MineNegativesStage(Stage):
    """Searches the training set for hard negatives, and marks those that are right after all."""

    settings = MineSettings
    execution = MineExecution

    def label(self, conf: str, settings: MineSettings) -> str:
        """Return the label of the search, with the kinds of judges, or `decisions` if people alone have judged."""
        kinds = [judge_name(judge).kind for judge in settings.judges]
        if settings.decisions and not kinds:
            kinds = ["decisions"]
        return search_label(conf, settings, *kinds)

    def needs(self, settings: MineSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for the embeddings to search in and a second model; or for the lists of a search and judges' scores.

        Raises:
            UsageError: the mining model has no embeddings, or given ones shall have a second model.
        """
        needs = searched_needs(settings, definition)
        if settings.judges or settings.decisions:
            search = search_need(settings)
            needs[SEARCH] = search
            for number, judge in enumerate(settings.judges, 1):
                judged = {**search.settings, "judge": judge}
                needs[JUDGE_INPUT.format(number)] = Need("judge", "pairs", judged, without=search.without)
        elif settings.rescore_with:
            if is_given(settings.backbone):
                raise UsageError(
                    f"--rescore-with {settings.rescore_with} names a second model of the same method and features, "
                    "which given embeddings do not have; leave it out"
                )
            second = {**needs["train"].settings, "backbone": settings.rescore_with}
            needs["rescorer"] = Need("train", settings.method, second)
        return needs

    def has_parts(self, step: Step) -> bool:
        """Return whether the step is a search; marking its lists takes a moment."""
        return SEARCH not in step.inputs

    def run(self, job: Job) -> None:
        """Search, or mark the lists of a search, and write both lists with their statistics.

        Raises:
            UsageError: the embeddings are not compared by inner product, captions without texts are to be compared, or
                judgements were added meanwhile; see also `mine_split`.
            DataError: the file of further candidates is not usable; see also `mine_split`.
            DiskFullError: the lists do not fit on the disk.
            OthersMissing: this job makes a share of the parts, and has made it.
        """
        if SEARCH in job.inputs:
            _mark(job)
        else:
            _search(job)


def _search(job: Job) -> None:
    from itrpipe.datasets.prepared import texts_of
    from itrpipe.datasets.truth import TRUTH_FILE, known_pairs
    from itrpipe.engine.run import Maps
    from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, EmbeddingRows
    from itrpipe.mining.lists import ListWriter
    from itrpipe.mining.mine import mine_split
    from itrpipe.mining.statistics import summary
    from itrpipe.storage.disk import require_space, write_json
    from itrpipe.storage.tables import read_table
    from itrpipe.training.checks import why_longer

    model = first_model(job.inputs)
    prepared = job.inputs["prepare"]
    settings = job.settings
    execution = job.execution
    embeddings = EmbeddingRows.open(model.folder / EMBEDDINGS, TRAIN)
    if embeddings.measure != INNER_PRODUCT:
        raise UsageError(
            f"the model {settings.method}.{settings.backbone} compares by {embeddings.measure}, which exact mining "
            "cannot search; mine with a model whose measure is cosine"
        )
    if settings.drop_duplicates and prepared.manifest.metrics.get("captions_with_text") == 0:
        raise UsageError("--drop-duplicates compares captions, of which the given files hold no text; leave it out")
    owners = embeddings.owners.read()
    images = embeddings.images.shape[0]
    texts = len(owners)
    places = images * min(settings.num_texts, texts) + texts * min(settings.num_images, images)
    require_space(job.folder, _BYTES_PER_PLACE * places, "the mined lists, twice in parts")

    ids = further = second = truth = None
    if settings.candidates or (prepared.folder / TRUTH_FILE).exists():
        ids = embeddings.ids()
        truth = known_pairs(prepared.folder, *ids)
    if settings.candidates and ids:
        from itrpipe.features.given import open_further

        path = Path(settings.candidates).expanduser()
        dim = embeddings.images.shape[1]
        unit = model.manifest.settings.get("measure") == "cosine"  # given embeddings have this setting
        side, further_ids, rows = open_further(path, job.work / CORPUS, dim, ids, unit=unit)
        further = side, rows
        write_json(job.folder / FURTHER, {"side": side, "ids": further_ids})
        job.metrics["further candidates"] = len(further_ids)
    if settings.rescore_with:
        from itrpipe.training.second_model import second_model

        second = second_model(settings, execution, job.inputs, embeddings)

    with ListWriter(job.folder, embeddings.image_ids, embeddings.caption_ids) as lists:
        statistics = mine_split(
            embeddings.images,
            embeddings.texts,
            owners,
            settings,
            Maps(job.work, job.reporter, job.warn, execution),
            lists.write,
            device=execution.device,
            block=execution.block,
            memory=execution.memory_mib * 2**20,
            further=further,
            captions=texts_of(prepared.folder, TRAIN, embeddings.caption_ids),
            truth=truth,
            second=second,
        )
    write_json(job.folder / STATISTICS, statistics)
    job.metrics |= lists.widths | {"images": images, "captions": texts}

    for line in summary(statistics):
        job.reporter.say(line)
    if HISTORY not in model.manifest.outputs:  # the model was trained elsewhere
        return
    history = read_table(model.folder / HISTORY, (), "remove its folder and train again").to_pylist()
    validated = EmbeddingRows.open(model.folder / EMBEDDINGS, "val").images.shape[0]
    reason = why_longer(history, model.manifest.settings, validated)
    if reason:
        job.reporter.say(f"  train the model that mined longer first: {reason}")


def _mark(job: Job) -> None:
    from itrpipe.datasets.decisions import read_decisions, unknown_pairs
    from itrpipe.datasets.truth import Decided
    from itrpipe.features.embeddings import EMBEDDINGS, EmbeddingRows
    from itrpipe.mining.judged import CALIBRATION, Judgement, candidate_pairs, mark_lists
    from itrpipe.mining.lists import ListWriter
    from itrpipe.mining.statistics import sentences
    from itrpipe.storage.disk import read_json, write_json

    settings = job.settings
    searched = job.inputs[SEARCH].folder
    embeddings = EmbeddingRows.open(first_model(job.inputs).folder / EMBEDDINGS, TRAIN)
    decided = None
    count = 0
    if settings.decisions:
        ids = embeddings.ids()
        decisions = read_decisions(Path(settings.decisions).expanduser()).of_training
        if decisions.digest() != job.sources["decisions"]:
            raise UsageError(f"{settings.decisions} was added to meanwhile; run the same command again")
        count = len(decisions.verdicts)
        unknown = unknown_pairs(decisions, job.inputs["prepare"].folder)
        if unknown:
            job.warn(f"{settings.decisions}: {quantity(unknown, 'pair')} of ids that the dataset does not have")
        decided = Decided.of(decisions.verdicts, *ids)
        decided.write(job.folder, *ids)
        job.metrics["decided"] = f"{len(decided.fits):,} fit, {len(decided.differs):,} do not"

    judgement = None
    if settings.judges:
        folders = {}
        for number, judge in enumerate(settings.judges, 1):
            folders[judge] = job.inputs[JUDGE_INPUT.format(number)].folder
        judgement = Judgement.read(folders, decided)
        write_json(job.folder / CALIBRATION, asdict(judgement.calibration))

    statistics = read_json(searched / STATISTICS)
    with ListWriter(job.folder, embeddings.image_ids, embeddings.caption_ids) as lists:
        mark_lists(searched, statistics, lists.write, judgement, decided)
    if decided is not None:
        answers, is_judged = decided.answers(candidate_pairs(searched))
        statistics["decided"] = {
            "decisions": count,
            "mined": int(is_judged.sum()),
            "left_out": int((answers == 1).sum()),
            "kept": int((answers == 0).sum()),
        }
    write_json(job.folder / STATISTICS, statistics)
    job.metrics |= lists.widths
    for sentence in sentences(statistics):
        job.reporter.say(f"  {sentence}")
