"""`itrpipe mine-negatives`: hardest negatives of the training set, in both directions, by a trained model."""

from pathlib import Path
from typing import Any

from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.errors import UsageError
from itrpipe.features.declaration import is_given, read_model
from itrpipe.models.declaration import settings_of
from itrpipe.stages.base import Job, Need, Stage, prepare_need
from itrpipe.stages.embeddings import embeddings_need
from itrpipe.storage.artifact import HISTORY, STATISTICS
from itrpipe.training.settings import MineExecution, MineSettings, Model, run_label

TRAIN = "train"
CORPUS, FURTHER = "corpus.arrays", "further_candidates.json"
_BYTES_PER_PLACE = 32
"""Bytes on the disk: 8 in the end, and 12 in the parts of each of two maps."""


class MineNegatives(Stage):
    """Searches the training set for hard negatives."""

    settings, execution = MineSettings, MineExecution

    def label(self, conf: str, settings: MineSettings) -> str:
        """`exact`, or `approximate` by an index, and the mining model, with `+` and the backbone of a second one."""
        found = conf if settings.index == "flat" else "approximate"
        models = "+".join(filter(None, (settings.backbone, settings.rescore_with)))
        return f"{found}.{run_label(settings.method, models, settings.seed)}"

    def needs(self, settings: MineSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """The captions and the mining model's embeddings, and a second model.

        Raises:
            UsageError: the mining model has no embeddings.
        """
        if is_given(settings.backbone):
            if settings.rescore_with:
                raise UsageError(
                    f"--rescore-with {settings.rescore_with} names a second model of the same method and features, "
                    "which given embeddings do not have; leave it out"
                )
        elif not settings_of(settings.backbone).embeds:
            raise UsageError(
                f"{settings.backbone} compares regions with words and has no embeddings to search; mine with another "
                "backbone, such as vsrn, and train with `--negatives-from vsrn`"
            )
        wanted: dict[str, Any] = {"features": settings.features}
        if settings.train_share != 1.0:
            wanted["train_share"] = settings.train_share
        model = Model(settings.method, settings.backbone, settings.seed)
        need = embeddings_need(model, TRAIN, **wanted)
        needed = {"prepare": prepare_need(definition, TRAIN), need.stage: need}
        if settings.rescore_with:
            second = Need("train", settings.method, {**need.settings, "backbone": settings.rescore_with})
            needed["rescorer"] = second
        return needed

    def run(self, job: Job) -> None:
        """Open what is mined and what has a say in it, mine, and write both lists with the figures on them.

        Raises:
            UsageError: the embeddings are not compared by inner product, captions without texts are to be compared, or
                judgements were added meanwhile; see also `Guard` and `mine_split`.
            DataError: further candidates are not what they should be; see also `mine_split`.
            DiskFullError: the lists do not fit on the disk.
        """
        from itrpipe.datasets.prepared import texts_of
        from itrpipe.datasets.truth import TRUTH_FILE, Decided, known_pairs
        from itrpipe.engine.run import Maps
        from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, EmbeddingRows
        from itrpipe.mining.lists import DIRECTIONS, ListWriter
        from itrpipe.mining.mine import mine_split
        from itrpipe.mining.statistics import summary
        from itrpipe.storage.disk import require_space, write_json
        from itrpipe.storage.tables import read_table
        from itrpipe.training.checks import why_longer

        model, prepared = read_model(job.inputs), job.inputs["prepare"]
        settings, execution = job.settings, job.execution
        embeddings = EmbeddingRows.open(model.folder / EMBEDDINGS, TRAIN)
        if embeddings.measure != INNER_PRODUCT:
            raise UsageError(
                f"the model {settings.method}.{settings.backbone} compares by {embeddings.measure}, which exact mining "
                "cannot search; mine with a model whose measure is cosine"
            )
        if settings.drop_duplicates and prepared.manifest.metrics.get("captions_with_text") == 0:
            raise UsageError("--drop-duplicates compares captions, of which the given files hold no text; leave it out")
        owners = embeddings.owners.read()
        images, texts = embeddings.images.shape[0], len(owners)
        places = images * min(settings.num_texts, texts) + texts * min(settings.num_images, images)
        require_space(job.folder, _BYTES_PER_PLACE * places, "the mined lists, twice in parts")

        ids = further = decided = truth = None
        if settings.candidates or settings.decisions or (prepared.folder / TRUTH_FILE).exists():
            ids = embeddings.ids()
            truth = known_pairs(prepared.folder, *ids)
        if settings.candidates and ids:
            from itrpipe.features.given import open_further

            path, dim = Path(settings.candidates).expanduser(), embeddings.images.shape[1]
            unit = model.manifest.settings.get("measure") == "cosine"  # of given ones
            side, further_ids, rows = open_further(path, job.work / CORPUS, dim, ids, unit=unit)
            further = side, rows
            write_json(job.folder / FURTHER, {"side": side, "ids": further_ids})
            job.metrics["further candidates"] = len(further_ids)
        if settings.decisions and ids:
            from itrpipe.datasets.decisions import read_decisions

            decisions = read_decisions(Path(settings.decisions).expanduser()).of_training
            if decisions.digest() != job.sources["decisions"]:
                raise UsageError(f"{settings.decisions} was added to meanwhile; run the same command again")
            decided = Decided.of(decisions.verdicts, *ids)
            job.metrics["decided"] = f"{len(decided.fits):,} fit, {len(decided.differs):,} do not"
        guard = second = None
        if settings.guard != "none":
            from itrpipe.mining.rescoring import Guard

            vectors = embeddings.images.mapped(), embeddings.texts.mapped()
            guard = Guard(*vectors, owners, prior=settings.guard_prior, batch_size=settings.guard_batch_size)
        if settings.rescore_with:
            from itrpipe.training.second_model import second_model

            second = second_model(settings, execution, job.inputs, embeddings)

        anchors = dict(zip(DIRECTIONS, (embeddings.image_ids, embeddings.caption_ids), strict=True))
        with ListWriter(job.folder, anchors) as lists:
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
                decided=decided,
                truth=truth,
                guard=guard,
                second=second,
            )
        if decided and ids:
            decided.write(job.folder, *ids)
        write_json(job.folder / STATISTICS, statistics)
        job.metrics |= lists.widths | {"images": images, "captions": texts}

        for line in summary(statistics):
            job.reporter.say(line)
        if HISTORY not in model.manifest.outputs:  # trained elsewhere
            return
        history = read_table(model.folder / HISTORY, (), "remove its folder and train again").to_pylist()
        validated = EmbeddingRows.open(model.folder / EMBEDDINGS, "val").images.shape[0]
        if reason := why_longer(history, model.manifest.settings, validated):
            job.reporter.say(f"  train the model that mined longer first: {reason}")
