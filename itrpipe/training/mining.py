"""Mines the training set by the embeddings of a model, for the stage `mine-negatives` and while a model trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.datasets.decisions import read_decisions
from itrpipe.datasets.prepared import captions_of
from itrpipe.datasets.truth import TRUTH_FILE, Decided, known_pairs
from itrpipe.engine.run import Maps
from itrpipe.errors import UsageError
from itrpipe.evaluation.tables import aligned
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, EmbeddingRows, Side, read_embeddings
from itrpipe.features.given import open_further
from itrpipe.mining.files import ListWriter
from itrpipe.mining.lists import DIRECTIONS, CandidateLists, Shapes
from itrpipe.mining.mine import Search, mine_split
from itrpipe.mining.rescoring import Guard, Rescoring
from itrpipe.mining.statistics import sentences, table_rows
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import STATISTICS, WORK
from itrpipe.storage.disk import require_space, write_json
from itrpipe.training.settings import MineExecution, MineSettings

CORPUS, FURTHER = "corpus.arrays", "further_candidates.json"
_BYTES_PER_CANDIDATE, _BYTES_PER_PROBABILITY, _BYTES_PER_PLACE = 6, 2, 12
_SIDES: dict[str, Side] = {DIRECTIONS[0]: "image", DIRECTIONS[1]: "caption"}
_CAPTIONS_AT_ONCE = 65_536


def mine_training_set(
    embeddings: EmbeddingRows,
    prepare: Any,
    settings: MineSettings,
    execution: MineExecution,
    folder: Path,
    reporter: Reporter,
    warn: Callable[[str], None],
    *,
    decisions: str = "",
    unit: bool = False,
    rescorer: Callable[[Path, Shapes], Rescoring] | None = None,
) -> dict[str, Any]:
    """Write the mined lists of a training set and the figures on them, and print these.

    Args:
        embeddings: by the model that mines.
        prepare: artifact of the captions.
        settings, execution: of mining.
        folder: for the lists, `statistics.json` and what only resuming needs.
        reporter: shows progress and figures.
        warn: is told what is to be warned of.
        decisions: digest of people's judgements, as it was when mining was planned.
        unit: make further candidates unit vectors.
        rescorer: of `second_model`.

    Returns:
        Numbers for the manifest.

    Raises:
        UsageError: the embeddings are not compared by inner product; captions without texts are to be compared; or
            judgements were added meanwhile. See also `mine_split`.
        DataError: further candidates are not what they should be; see also `mine_split`.
        DiskFullError: the lists do not fit on the disk.
    """
    if embeddings.measure != INNER_PRODUCT:
        raise UsageError(
            f"the model {settings.method}.{settings.backbone} compares by {embeddings.measure}, which exact mining "
            "cannot search; mine with a model whose measure is cosine"
        )
    if settings.drop_duplicates and prepare.manifest.metrics.get("captions_with_text") == 0:
        raise UsageError("--drop-duplicates compares captions, of which the given files hold no text; leave it out")
    images = embeddings.images.shape[0]
    texts = embeddings.texts.shape[0]
    metrics: dict[str, Any] = {}
    further = {}
    if settings.candidates:
        path = Path(settings.candidates).expanduser()
        side, further_ids, rows = open_further(path, folder / WORK / CORPUS, embeddings, unit=unit)
        write_json(folder / FURTHER, {"side": side, "ids": further_ids})
        metrics["further candidates"] = len(further_ids)
        further[side] = rows
    wanted = images * min(settings.num_texts, texts) + texts * min(settings.num_images, images)
    guards = settings.guard != "none"
    width = _BYTES_PER_CANDIDATE + (_BYTES_PER_PROBABILITY if guards else 0)
    require_space(folder, (width + 2 * _BYTES_PER_PLACE) * wanted, "the mined lists, twice in parts")
    ids = decided = truth = None
    if settings.decisions or (prepare.folder / TRUTH_FILE).exists():
        ids = np.array(embeddings.ids("image")), np.array(embeddings.ids("caption"))
        truth = known_pairs(prepare.folder, *ids)
        if settings.decisions:
            verdicts = read_decisions(Path(settings.decisions).expanduser()).of_training.verdicts
            if verdicts.digest() != decisions:
                raise UsageError(f"{settings.decisions} was added to meanwhile; run the same command again")
            decided = Decided.of(verdicts, *ids)
            metrics["decided"] = f"{len(decided.fits):,} fit, {len(decided.differs):,} do not"

    def open_guard() -> Guard:
        whole = read_embeddings(embeddings.path, embeddings.split)
        return Guard(whole, prior=settings.guard_prior, batch_size=settings.guard_batch_size)

    with ExitStack() as open_files:
        files: dict[str, ListWriter] = {}

        def write(direction: str, part: slice, lists: CandidateLists, probability: np.ndarray | None) -> None:
            if direction not in files:
                metrics[direction] = width = lists.candidates.shape[1]
                wide = lists.candidates.itemsize > 4
                file = ListWriter(folder, direction, width, guarded=guards, wide=wide)
                files[direction] = open_files.enter_context(file)
            ids = embeddings.ids(_SIDES[direction], part.start, part.stop)
            files[direction].write(ids, lists.candidates, lists.scores, probability)

        statistics = mine_split(
            embeddings.images,
            embeddings.texts,
            embeddings.owners.read(),
            (settings.num_texts, settings.num_images),
            Maps(folder / WORK, reporter, warn, execution),
            write,
            further=further,
            search=Search(
                library=settings.library,
                precision=settings.precision,
                index=settings.index,
                num_lists=settings.num_lists,
                num_probes=settings.num_probes,
                device=execution.device,
                block=execution.block,
                memory=execution.memory_mib * 2**20,
            ),
            limits=settings.window.model_dump(exclude_defaults=True),
            captions=_captions(prepare.folder, embeddings),
            drop_duplicates=settings.drop_duplicates,
            decided=(decided.fits, decided.differs) if decided else None,
            truth=truth,
            guard=open_guard if guards else None,
            rescorer=rescorer,
        )
    if decided and ids:
        decided.write(folder, *ids)
    write_json(folder / STATISTICS, statistics)
    for line in aligned(table_rows(statistics)):
        reporter.say(line)
    for sentence in sentences(statistics):
        reporter.say(f"  {sentence}")
    repeats = statistics["duplicates"]["captions_of_other_images"]
    if repeats:
        reporter.say(f"  {repeats:,} captions belong word for word to another image too")
    return metrics | {"images": images, "captions": texts}


def mine_again(folder: Path, mined: Any, prepare: Any, device: str, reporter: Reporter, warn: Callable) -> None:
    """Mine in a folder that holds the embeddings of the training split, as lists were mined before.

    Args:
        folder: for the lists, too.
        mined: artifact of these lists.
        prepare: artifact of the captions.
        device: to search on.
        reporter, warn: see `mine_training_set`.
    """
    settings = MineSettings.model_validate(mined.manifest.settings)
    here = {"device": device, "engine": "local", "workers": 0, "address": "", "part": ""}
    execution = MineExecution.model_validate({**mined.manifest.execution, **here})
    embeddings = EmbeddingRows.open(folder / EMBEDDINGS, "train")
    decisions = mined.manifest.sources.get("decisions", "")
    (folder / WORK).mkdir()
    mine_training_set(embeddings, prepare, settings, execution, folder, reporter, warn, decisions=decisions)


def _captions(prepared: Path, embeddings: EmbeddingRows) -> Iterator[str]:
    """Yields the training captions in the order of their embeddings, which is that of the dataset."""
    captions = captions_of(prepared, "train")
    for start in range(0, embeddings.texts.shape[0], _CAPTIONS_AT_ONCE):
        for caption_id in embeddings.ids("caption", start, start + _CAPTIONS_AT_ONCE):
            # Of images without features there are no embeddings.
            yield next(text for own, text in captions if own == caption_id)
