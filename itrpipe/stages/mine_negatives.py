"""`itrpipe mine-negatives`: hardest negatives of the training set, in both directions, by a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.engine.run import SharedExecution
from itrpipe.errors import DataError, UsageError
from itrpipe.features.declaration import is_given
from itrpipe.mining.settings import MineSettings
from itrpipe.stages.base import PARTS, Artifact, Job, Need, Stage, prepare_need
from itrpipe.storage.artifact import HISTORY, STATISTICS
from itrpipe.storage.disk import check_stamp, require_space, write_json
from itrpipe.training import settings as training_settings
from itrpipe.training.settings import run_label

if TYPE_CHECKING:
    import numpy as np

    from itrpipe.datasets.truth import PairSet
    from itrpipe.features.embeddings import EmbeddingRows
    from itrpipe.mining.lists import MinedFile, Searched
    from itrpipe.mining.rescoring import Guard
    from itrpipe.review import Decided
    from itrpipe.storage.arrays import Rows

MINED, RESCORED, CORPUS = "mined.arrays", "rescored.arrays", "corpus.arrays"
FURTHER = "further_candidates.json"
BYTES_PER_CANDIDATE, BYTES_PER_PROBABILITY, BYTES_PER_PLACE = 6, 2, 12
FAISS_BLOCK = 4_096
TRAIN = "train"
BARELY = 0.6
"""Share of captions that fit their own image better than another one, below which something is wrong."""
EXPECTED_RECALL = 0.99
"""Share of the exact candidates below which an index is called bad."""


class Execution(SharedExecution):
    """Settings that do not change the result.

    Attributes:
        device: `auto` takes CUDA when there is one.
        block: images per part at most; 0 chooses it by their number. For `faiss` images or captions; 0 takes 4,096.
        memory_mib: MiB that all tiles of products take, and a batch of pairs of a second model; 0: of products 128 for
            each core, or half of what a GPU has free, and of pairs 256.
    """

    device: Literal["auto", "cpu", "cuda"]
    block: int = Field(ge=0)
    memory_mib: int = Field(ge=0)


class MineNegatives(Stage):
    """Searches the training set for hard negatives."""

    settings, execution = MineSettings, Execution

    def label(self, conf: str, settings: MineSettings) -> str:
        """`exact`, or `approximate` by an index, and the mining model, with `+` and the backbone of a second one."""
        found = conf if settings.index == "flat" else "approximate"
        models = "+".join(filter(None, (settings.backbone, settings.rescore_with)))
        return f"{found}.{run_label(settings.method, models, settings.seed)}"

    def needs(self, settings: MineSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """The captions and the mining model's embeddings; a second model, and the features that it looks at.

        Raises:
            UsageError: the mining model has no embeddings.
        """
        if not training_settings.settings_of(settings.backbone).embeds:
            raise UsageError(
                f"{settings.backbone} compares regions with words and has no embeddings to search; mine with another "
                "backbone, such as vsrn, and train with `--negatives-from vsrn`"
            )
        wanted: dict[str, Any] = {"backbone": settings.backbone, "seed": settings.seed, "features": settings.features}
        if settings.train_share != 1.0:
            wanted["train_share"] = settings.train_share
        if is_given(settings.backbone):
            wanted["features"] = TRAIN
            if settings.rescore_with:
                raise UsageError(
                    f"--rescore-with {settings.rescore_with} names a second model of the same method and features, "
                    "which given embeddings do not have; leave it out"
                )
        needed = {"prepare": prepare_need(definition, TRAIN), "train": Need("train", settings.method, wanted)}
        if settings.rescore_with:
            second = Need("train", settings.method, {**wanted, "backbone": settings.rescore_with})
            needed |= {"extract": Need("extract", settings.features), "rescorer": second}
        return needed

    def run(self, job: Job) -> None:
        """Writes both lists and statistics.json."""
        from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, EmbeddingRows, read_embeddings
        from itrpipe.mining.filters import better_than_another, positive_scores
        from itrpipe.mining.rescoring import Guard, load_scoring_model

        settings = job.settings
        embeddings = EmbeddingRows.open(job.inputs["train"].folder / EMBEDDINGS, "train")
        if embeddings.measure != INNER_PRODUCT:
            raise UsageError(
                f"the model {settings.method}.{settings.backbone} compares by {embeddings.measure}, which exact mining "
                "cannot search; mine with a model whose measure is cosine"
            )
        images, texts = embeddings.images.shape[0], embeddings.texts.shape[0]
        owners = embeddings.owners.read(0, texts)
        if settings.drop_duplicates and job.inputs["prepare"].manifest.metrics.get("captions_with_text") == 0:
            raise UsageError("--drop-duplicates compares captions, of which the given files hold no text; leave it out")
        searched = _searched_rows(job, embeddings, owners)
        widths = searched.widths
        if widths != (settings.num_texts, settings.num_images):
            job.warn(f"lists hold {widths[0]:,} captions and {widths[1]:,} images: there are no more candidates")
        wanted = images * widths[0] + texts * widths[1]
        width = BYTES_PER_CANDIDATE + (BYTES_PER_PROBABILITY if settings.guard != "none" else 0)
        require_space(job.folder, (width + 2 * BYTES_PER_PLACE) * wanted, "the mined lists, twice in parts")
        if settings.rescore_with:  # what cannot score pairs is better found out before mining than after
            load_scoring_model(job.inputs["rescorer"].folder)
        guard = None
        if settings.guard != "none":
            whole = read_embeddings(embeddings.path, embeddings.split)
            guard = Guard(whole, prior=settings.guard_prior, batch_size=settings.guard_batch_size)
        mined, facts = _mined(job, searched)
        if settings.rescore_with:
            mined, positives, facts["rescored"] = _rescored(job, embeddings, owners, mined)
        else:
            positives = positive_scores(embeddings.images, embeddings.texts, owners)
            better = better_than_another(embeddings.images, embeddings.texts, owners, positives)
            if better < BARELY:
                job.warn(
                    f"only {100 * better:.0f} % of the captions fit their own image better than another one, chance "
                    "being 50 %: the model has learned little, or embeddings and owners are in different orders"
                )
        statistics = _written(job, embeddings, owners, mined, positives, guard)
        write_json(job.folder / STATISTICS, statistics | facts)
        _show(job, statistics | facts)
        if reason := _why_longer(job.inputs["train"]):
            job.reporter.say(f"  train the model that mined longer first: {reason}")


def _why_longer(trained: Artifact) -> str:
    """Return why the mining model is to train longer; empty if nothing says so, or if it was trained elsewhere."""
    from itrpipe.features.embeddings import EMBEDDINGS, EmbeddingRows
    from itrpipe.storage.tables import read_table
    from itrpipe.training.convergence import why_longer

    if HISTORY not in trained.manifest.outputs:
        return ""
    history = read_table(trained.folder / HISTORY, (), "remove its folder and train again").to_pylist()
    validated = EmbeddingRows.open(trained.folder / EMBEDDINGS, "val").images.shape[0]
    return why_longer(history, trained.manifest.settings, validated)


def _searched_rows(job: Job, embeddings: EmbeddingRows, owners: np.ndarray) -> Searched:
    """The training images and captions, and behind them further candidates, whose ids are written.

    Raises:
        DataError: their file is damaged or of no known form, or another model's.
    """
    import numpy as np

    from itrpipe.mining.lists import JoinedRows, Searched, open_corpus

    sides: list[Rows] = [embeddings.images, embeddings.texts]
    anchors = (embeddings.images.shape[0], embeddings.texts.shape[0])
    widths = (job.settings.num_texts, job.settings.num_images)
    if not job.settings.candidates:
        return Searched((sides[0], sides[1]), owners, widths)
    path = Path(job.settings.candidates).expanduser()
    mining = job.inputs["train"].manifest.settings
    unit = is_given(mining["backbone"]) and mining["model"]["measure"] == "cosine"
    corpus = open_corpus(path, job.work / CORPUS, unit=unit)
    if corpus.rows.shape[1] != embeddings.images.shape[1]:
        raise DataError(
            f"--candidates {path} holds vectors of width {corpus.rows.shape[1]} and the mining model's have "
            f"{embeddings.images.shape[1]}; embed them with the model that mines"
        )
    known = embeddings.ids(corpus.side, 0, anchors[corpus.side == "caption"])
    if twice := set(known).intersection(corpus.ids):
        raise DataError(
            f"--candidates {path}: {len(twice):,} of {len(corpus.ids):,} ids are in the training set, such as "
            f"{min(twice)}; leave them out, they are candidates already"
        )
    write_json(job.folder / FURTHER, {"side": corpus.side, "ids": corpus.ids})
    job.metrics["further candidates"] = len(corpus.ids)
    side = int(corpus.side == "caption")
    sides[side] = JoinedRows((sides[side], corpus.rows))
    if side:
        owners = np.append(owners, np.full(len(corpus.ids), -1))
    return Searched((sides[0], sides[1]), owners, widths, anchors)


def _mined(job: Job, searched: Searched) -> tuple[MinedFile, dict[str, Any]]:
    """The lists by the mining model, and of an index how well it searched."""
    from itrpipe.mining.exact import ExactMining
    from itrpipe.mining.faiss_engine import Indexing, Searching
    from itrpipe.mining.lists import MinedFile

    settings, execution = job.settings, job.execution
    sizes, device = [], execution.device
    work: ExactMining | Searching
    if settings.library == "faiss":
        indexes = None
        if settings.index != "flat":
            indexing = Indexing(searched, settings.index, settings.num_lists, settings.num_probes)
            indexes = indexing.of_sides(job.made(indexing, f"{PARTS}/index", more=True).paths)
            sizes = indexing.sizes
        again = settings.index == "ivf-pq"
        work = Searching(searched, indexes, again=again, block=execution.block or FAISS_BLOCK, device=device)
    else:
        options = {"block": execution.block, "memory": execution.memory_mib * 2**20, "device": device}
        work = ExactMining(searched, precision=settings.precision, **options)
    made = job.made(work, f"{PARTS}/mined", more=bool(settings.rescore_with))
    path = job.work / MINED
    if made.rows or not _is_whole(job, path):
        with job.reporter.task("joining", sum(searched.anchors), "lists") as task:
            work.join(made.paths, path, task.advance)
    mined = MinedFile(path)
    return mined, {"search": _search_facts(job, searched, mined, sizes)} if sizes else {}


def _is_whole(job: Job, path: Path) -> bool:
    """Whether a joined file of an interrupted run is there, as it was written."""
    if not path.exists():
        return False
    try:
        check_stamp(path, "it is made again")
    except DataError:
        job.warn(f"{path.name} was damaged; it is made again")
        return False
    return True


def _search_facts(job: Job, searched: Searched, mined: MinedFile, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Clusters, probes and measured recall of an index; a warning where it missed much."""
    from itrpipe.mining.exact import SAMPLED_ANCHORS, ExactMining
    from itrpipe.mining.lists import DIRECTIONS

    recall = ExactMining(searched).recall(mined)
    lists, probes = (dict(zip(DIRECTIONS, numbers, strict=True)) for numbers in zip(*sizes, strict=True))
    worst = min(DIRECTIONS, key=lambda name: recall[name])
    if recall[worst] < EXPECTED_RECALL:
        job.warn(
            f"the index found {100 * recall[worst]:.1f}% of the {worst.replace('_', ' ')} that exact search finds with "
            f"num_probes = {probes[worst]:,}; raise --set num_probes=… or search exactly with --set index=flat"
        )
    recall = {name: round(share, 4) for name, share in recall.items()}
    return {"num_lists": lists, "num_probes": probes, "recall": recall, "sampled_anchors": SAMPLED_ANCHORS}


def _rescored(
    job: Job, embeddings: EmbeddingRows, owners: np.ndarray, mined: MinedFile
) -> tuple[MinedFile, np.ndarray, dict[str, Any]]:
    """The lists in the order of the second model, its scores [T] of the positives, and what was done.

    Its encodings are not kept: every worker encodes, and so does an interrupted run that goes on.
    """
    from itrpipe.mining.lists import MinedFile
    from itrpipe.mining.rescoring import Rescoring, encoded_scorer, rescored_positives

    settings, execution = job.settings, job.execution
    model = run_label(settings.method, settings.rescore_with, settings.seed)
    held = [width for _, width in mined.shapes.values()]
    texts = min(settings.rescore_texts or held[0], held[0])
    images = min(settings.rescore_images or held[1], held[1])
    folders = [job.inputs[name].folder.absolute() for name in ("rescorer", "prepare", "extract")]
    opening = partial(encoded_scorer, *folders, embeddings, execution.device, (execution.memory_mib or 256) * 2**20)
    work = Rescoring(model, mined.path.absolute(), owners, opening, (texts, images), execution.device)
    path = job.work / RESCORED
    work.join(job.made(work, f"{PARTS}/rescored").paths, path)
    return MinedFile(path), rescored_positives(path), {"model": model, "texts": texts, "images": images}


def _written(
    job: Job,
    embeddings: EmbeddingRows,
    owners: np.ndarray,
    mined: MinedFile,
    positives: np.ndarray,
    guard: Guard | None,
) -> dict[str, Any]:
    """Writes the lists after all filters, some anchors at a time, and returns the figures on them."""
    from itrpipe.mining.files import ListWriter
    from itrpipe.mining.filters import DuplicateCaptions, drop, lowest_positives, outside
    from itrpipe.mining.lists import DIRECTIONS, matching
    from itrpipe.mining.statistics import DATASET, PEOPLE, Figures, mining_statistics

    settings, images = job.settings, embeddings.images.shape[0]
    searched = {DIRECTIONS[0]: len(owners), DIRECTIONS[1]: images}
    anchors = {DIRECTIONS[0]: lowest_positives(positives, owners, images), DIRECTIONS[1]: positives}
    sides: dict[str, Literal["image", "caption"]] = {DIRECTIONS[0]: "image", DIRECTIONS[1]: "caption"}
    same = DuplicateCaptions(_captions(job, embeddings), owners)
    decided = _decided(job, embeddings)
    true = _true_pairs(job, embeddings)
    figures = {name: Figures(*mined.shapes[name]) for name in DIRECTIONS}
    for name, (count, width) in mined.shapes.items():
        wide = mined.read(name, 0, 1).candidates.dtype.itemsize > 4
        with (
            ListWriter(job.folder, name, width, guarded=guard is not None, wide=wide) as writer,
            job.reporter.task(f"writing {name.replace('_', ' ')}", count, "lists") as task,
        ):
            for part, found in mined.slices(name):
                marked = same.mark(name, part, found)
                going = {"duplicates": marked} if settings.drop_duplicates else {}
                lists, dropped = drop(found, going | outside(settings.window, found, anchors[name][part]))
                if decided:
                    fits = decided.fit(name, part, lists)
                    if true is None:  # what fits is counted before it is dropped
                        figures[name].judge(fits | decided.differ(name, part, lists), fits)
                    lists, by_people = drop(lists, {"decisions": fits})
                    dropped |= by_people
                if true is not None:
                    known = (lists.candidates >= 0) & (lists.candidates < searched[name])
                    figures[name].judge(known, matching(true, name, part, lists))
                figures[name].add(part, lists, dropped)
                probability = guard.probability(name, lists) if guard else None
                if decided and probability is not None:
                    probability[decided.differ(name, part, lists)] = 0.0
                ids = embeddings.ids(sides[name], part.start, part.stop)
                writer.write(ids, lists.candidates, lists.scores, probability)
                task.advance(len(ids))
        job.metrics[name] = width
    job.metrics |= {"images": images, "captions": len(owners)}
    statistics = mining_statistics(figures, positives, owners) | {"duplicates": same.report()}
    statistics["judge"] = DATASET if true is not None else PEOPLE if decided else None
    return statistics | ({"guard": guard.facts()} if guard else {})


def _decided(job: Job, embeddings: EmbeddingRows) -> Decided | None:
    """What people decided on pairs of the training set, written beside the lists as well; None where none is read."""
    from itrpipe.review import Decided, read_decisions

    if not job.settings.decisions:
        return None
    verdicts = read_decisions(Path(job.settings.decisions).expanduser()).of_training.verdicts
    if verdicts.digest() != job.sources["decisions"]:
        raise UsageError(f"{job.settings.decisions} was added to meanwhile; run the same command again")
    ids = _ids(embeddings)
    found = Decided.of(verdicts, *ids)
    found.write(job.folder, *ids)
    job.metrics["decided"] = f"{len(found.fits):,} fit, {len(found.differs):,} do not"
    return found


def _true_pairs(job: Job, embeddings: EmbeddingRows) -> PairSet | None:
    """Return all correct matches of the training set; None where the dataset does not know them."""
    from itrpipe.datasets.truth import TRUTH_FILE, known_pairs

    prepared = job.inputs["prepare"].folder
    if not (prepared / TRUTH_FILE).exists():
        return None  # before the ids of millions are read
    return known_pairs(prepared, *_ids(embeddings))


def _ids(embeddings: EmbeddingRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all images and captions."""
    import numpy as np

    images = embeddings.ids("image", 0, embeddings.images.shape[0])
    captions = embeddings.ids("caption", 0, embeddings.texts.shape[0])
    return np.array(images), np.array(captions)


def _captions(job: Job, embeddings: EmbeddingRows) -> Iterator[str]:
    """The training captions in the order of their embeddings, which is that of the dataset."""
    from itrpipe.datasets.prepared import captions_of

    count, at_once = embeddings.texts.shape[0], 65_536
    wanted = (
        caption_id
        for start in range(0, count, at_once)
        for caption_id in embeddings.ids("caption", start, start + at_once)
    )
    own = next(wanted, None)
    for caption_id, text in captions_of(job.inputs["prepare"].folder, "train"):
        if caption_id == own:  # of images without features there are no embeddings
            yield text
            own = next(wanted, None)


def _show(job: Job, statistics: Mapping[str, Any]) -> None:
    """Prints the table of scores and what else is known of the lists."""
    from itrpipe.evaluation.tables import aligned
    from itrpipe.mining.statistics import sentences, table_rows

    for line in aligned(table_rows(statistics)):
        job.reporter.say(line)
    for sentence in sentences(statistics):
        job.reporter.say(f"  {sentence}")
    repeats = statistics["duplicates"]["captions_of_other_images"]
    if repeats:
        job.reporter.say(f"  {repeats:,} captions belong word for word to another image too")
