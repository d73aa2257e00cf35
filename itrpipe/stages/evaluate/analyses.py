"""What `itrpipe evaluate` finds out beside metrics and rankings, most of it about single models of some kinds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.artifacts.artifact import existing_input, input_folder, read_manifest
from itrpipe.artifacts.disk import write_json
from itrpipe.artifacts.integrity import read_checked_json
from itrpipe.progress import Reporter
from itrpipe.stages import train
from itrpipe.stages.base import Input, Job
from itrpipe.stages.evaluate.generators import SENTENCES_INPUT
from itrpipe.training import settings as training_settings
from itrpipe.training.settings import method_of, settings_of

if TYPE_CHECKING:
    from itrpipe.evaluation.ranks import Ranks
    from itrpipe.features.scores import SplitScores
    from itrpipe.training.splits import Sources

MATCHING, PHRASES = "matching.json", "phrases.parquet"
FALSE_NEGATIVES, HARD_CANDIDATES = "false_negatives.json", "false_negatives.parquet"
WORD_MAPS = "word_maps.parquet"
WORDS, WORD_CORRECTIONS = "words.json", "word_corrections.parquet"
WORD_FIGURES = {
    "matching": "right words are accepted",
    "mismatching": "wrong words, which the model itself wrote into captions, are found",
    "correction": "wrong words are corrected",
    "below_caption": "sentences with wrong words score below their caption",
}
DISCRIMINATION, GRAPHS = "discrimination.json", "graphs"
QUERY_LENGTH, ALIGNMENT, ECCV_CAPTION = "query_length.json", "alignment.json", "eccv_caption.json"


def write_query_length(job: Job, split: SplitScores, full: Ranks) -> None:
    """Writes query_length.json: recall of captions by their number of words."""
    import numpy as np
    import pyarrow.compute as pc

    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.evaluation.query_length import recall_by_length

    captions = PreparedDataset.open(job.inputs["prepare"].folder).split(job.settings.split)
    counts = pc.call_function("list_value_length", [captions.tokens]).to_pylist()
    words = dict(zip(captions.caption_ids.tolist(), counts, strict=True))
    lengths = np.array([words[caption] for caption in split.caption_ids.tolist()])
    write_json(job.folder / QUERY_LENGTH, recall_by_length(full.texts_to_images, lengths))


def write_alignment(job: Job) -> None:
    """Of models that compare embeddings by inner product, and of AsCL: writes alignment.json.

    AsCL has no embeddings; of it there are `vectors`, which say nothing of how it ranks. Metrics do not need the images
    that it was trained on; where these are gone there is a warning instead.
    """
    from itrpipe.evaluation.alignment import alignment_and_uniformity
    from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings

    if "mean-vectors" in settings_of(job.settings.backbone).answers:
        _write_alignment_of_means(job)
    if not training_settings.embeds(job.settings.backbone):
        return
    found = read_embeddings(job.inputs["train"].folder / EMBEDDINGS, job.settings.split)
    if found.measure == INNER_PRODUCT:
        write_json(job.folder / ALIGNMENT, alignment_and_uniformity(found.images, found.texts, found.caption_image))


def _write_alignment_of_means(job: Job) -> None:
    from itrpipe.analysis.canary import TrainedModel
    from itrpipe.analysis.mean_vectors import VECTORS, mean_vectors
    from itrpipe.evaluation.alignment import alignment_and_uniformity
    from itrpipe.training.splits import Sources

    sources = Sources(_read_by(job, "prepare"), _read_by(job, "extract"))
    if _without(job, ALIGNMENT, sources):
        return
    device = train.resolve_device(job.execution.device)
    opened = TrainedModel.open(job.inputs["train"].folder, sources, job.settings.split, device)
    found = alignment_and_uniformity(*mean_vectors(opened, job.execution.encode_block), opened.data.caption_image)
    write_json(job.folder / ALIGNMENT, {"vectors": VECTORS, **found})


def write_eccv_caption(job: Job, split: SplitScores) -> None:
    """Writes eccv_caption.json: metrics with the matches of ECCV Caption and CxC.

    Raises:
        DataError: the split is not COCO's 5K test split.
    """
    from itrpipe.evaluation.eccv_caption import eccv_caption_metrics, load_ground_truth

    ids = (split.image_ids.tolist(), split.caption_ids.tolist())
    found = eccv_caption_metrics(split.matrix, *ids, load_ground_truth())
    write_json(job.folder / ECCV_CAPTION, found)
    titles = {"map_at_r": "mAP@R", "r_precision": "R-Precision", "r1": "R@1"}
    numbers = [
        f"{side} {title} {found['eccv_caption'][f'{side}_{name}']:.1f}"
        for side in ("i2t", "t2i")
        for name, title in titles.items()
    ]
    job.reporter.say(f"  {found['package']}: {', '.join(numbers)}")


def with_phrases(job: Job, split: SplitScores) -> SplitScores:
    """Of models that read phrases: writes matching.json and phrases.parquet, and ranks again where only the best are.

    Returns:
        The scores, new ones where they were ranked again.

    Raises:
        MissingInputError: what the model was trained on was removed since.
    """
    from dataclasses import replace

    import pyarrow.parquet as pq

    from itrpipe.analysis.phrase_analysis import PhraseModel, fragment_scores, matching_accuracy
    from itrpipe.analysis.rerank import reranked_scores
    from itrpipe.training.splits import Sources

    settings = job.settings
    if not training_settings.reads_phrases(settings.backbone):
        return split
    block = job.execution.encode_block
    trained = job.inputs["train"]
    prepare, extract, parse = (
        existing_input(trained.folder, trained.manifest, name) for name in ("prepare", "extract", "parse")
    )
    sources = Sources(prepare, extract, parse)
    device = train.resolve_device(job.execution.device)
    opened = PhraseModel.open(job.inputs["train"].folder, sources, settings.split, device)
    if opened.model.settings.phase == "inter":
        write_json(job.folder / MATCHING, matching_accuracy(opened))
        pq.write_table(fragment_scores(opened, block=block), job.folder / PHRASES)
    if not settings.rerank:
        return split
    return replace(split, matrix=reranked_scores(opened, settings.rerank, block, job.reporter))


def write_false_negatives(job: Job) -> None:
    """Of models trained with FNE: writes false_negatives.json and .parquet, about the training split in any case."""
    import pyarrow.parquet as pq

    from itrpipe.analysis.false_negatives import TrainingSet, analyse

    method = method_of(job.settings.method)
    if "false-negatives" not in method.answers:
        return
    trained = job.inputs["train"]
    data = TrainingSet.open(trained.folder, job.inputs["prepare"].folder)
    settings: Any = method.model_validate(trained.manifest.settings["loss"])
    figures, candidates = analyse(data, settings, trained.manifest.settings["batch_size"])
    write_json(job.folder / FALSE_NEGATIVES, figures)
    pq.write_table(candidates, job.folder / HARD_CANDIDATES)


def write_word_maps(job: Job, split: SplitScores) -> None:
    """Of dual encoders whose scores are means over words and patches: writes word_maps.parquet.

    Metrics do not need the images that the model was trained on; where these are gone there is a warning instead.
    """
    import pyarrow.parquet as pq

    from itrpipe.analysis.word_maps import has_word_maps, word_maps
    from itrpipe.training.saved import load_model
    from itrpipe.training.splits import Sources

    if "word-maps" not in settings_of(job.settings.backbone).answers:
        return
    saved = load_model(job.inputs["train"].folder)
    if not has_word_maps(saved):
        return
    sources = Sources(_read_by(job, "prepare"), _read_by(job, "extract"))
    if _without(job, WORD_MAPS, sources):
        return
    device = train.resolve_device(job.execution.device)
    pq.write_table(word_maps(saved, sources, job.settings.split, split, device), job.folder / WORD_MAPS)


def write_words(job: Job) -> None:
    """Of models that learned which words are wrong: writes words.json and word_corrections.parquet.

    Metrics do not need the images and scene graphs that the model was trained on; where these are gone there is a
    warning instead.
    """
    import pyarrow.parquet as pq

    from itrpipe.analysis.word_accuracy import WordTest
    from itrpipe.analysis.word_corrections import has_word_heads
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.store import FEATURES, FeatureFile
    from itrpipe.synthesis.language_model import open_language_model
    from itrpipe.training.saved import load_model
    from itrpipe.training.splits import Sources

    if "words" not in settings_of(job.settings.backbone).answers:
        return
    saved = load_model(job.inputs["train"].folder)
    if not has_word_heads(saved):
        if job.settings.language_model:
            job.warn("the tokenizer does not tell which characters a piece is of: no perplexity was measured")
        return
    graphs = _read_by(job, "parse") if saved.config["loss"]["mask"] == "phrases" else None
    sources = Sources(_read_by(job, "prepare"), _read_by(job, "extract"), graphs)
    if _without(job, WORDS, sources):
        return
    split = PreparedDataset.open(sources.prepare).split(job.settings.split)
    features = FeatureFile.open(sources.extract / FEATURES)
    device = train.resolve_device(job.execution.device)
    name = job.settings.language_model
    model = open_language_model(name, device, job.warn) if name else None
    figures, corrections = WordTest(saved, split, features, device, sources.parse).run(language_model=model)
    if model is not None:
        figures["fluency"] = {"name": Path(name).name, **figures["fluency"]}
    write_json(job.folder / WORDS, figures)
    pq.write_table(corrections, job.folder / WORD_CORRECTIONS)
    say_words(job.folder, job.reporter)


def say_words(folder: Path, reporter: Reporter) -> None:
    """Prints what words.json of an evaluation says, where there is one: every figure with what it counts."""
    path = folder / WORDS
    words = read_checked_json(path) if path.is_file() else {}
    found = words.get("discrimination", {}) | words
    for key, what in WORD_FIGURES.items():
        if found.get(key) and found[key]["percent"] is not None:
            count = found[key].get("words", found[key].get("sentences"))
            reporter.say(f"  {found[key]['percent']:.1f} % of {count:,} {what}")
    if read := words.get("fluency"):
        corrected = "" if read["corrected"] is None else f", of these corrected {read['corrected']}"
        reporter.say(
            f"  perplexity by {read['name']}: of {read['sentences']:,} captions {read['captions']}, of a sentence with "
            f"wrong words made of each {read['written']}{corrected}"
        )


def write_discrimination(job: Job, split: SplitScores) -> None:
    """Where generators of sentences are named: writes discrimination.json.

    Raises:
        MissingInputError: what the model was trained on was removed since.
        DataError: sentences are of other captions.
        UsageError: the model reads scene graphs and there are none of sentences.
    """
    from itrpipe.analysis.discrimination import SentenceJudge, discrimination
    from itrpipe.stages.evaluate.sentence_graphs import SentenceParser
    from itrpipe.training.splits import Sources

    settings, trained = job.settings, job.inputs["train"]
    if not settings.discriminate:
        return
    prepare, extract = (existing_input(trained.folder, trained.manifest, name) for name in ("prepare", "extract"))
    sources = Sources(prepare, extract)
    device, block = train.resolve_device(job.execution.device), job.execution.encode_block
    parse = None
    if training_settings.reads_phrases(settings.backbone):
        graphs = existing_input(trained.folder, trained.manifest, "parse")
        parse = SentenceParser(Input(graphs, read_manifest(graphs)), job.work / GRAPHS, job.reporter)
    judge = SentenceJudge.open(trained.folder, sources, settings.split, split.image_ids, device, block, parse)
    found = {}
    for name in settings.discriminate:
        sentences = job.inputs[f"{SENTENCES_INPUT}{name}"]
        with job.reporter.task(f"scoring {name}", sentences.manifest.metrics["kept"], "sentences") as task:
            judged = judge.judge(sentences.folder, task.advance)
        found[name] = discrimination(judged, settings.bootstrap_samples, settings.interval_level)
        if found[name]["percent"] is not None:
            job.metrics[f"told from {name}"] = f"{found[name]['percent']['value']:.1f} %"
    write_json(job.folder / DISCRIMINATION, found)
    say_discrimination(job.folder, job.reporter)


def say_discrimination(folder: Path, reporter: Reporter) -> None:
    """Prints what discrimination.json of an evaluation says, where there is one."""
    path = folder / DISCRIMINATION
    for name, found in (read_checked_json(path) if path.is_file() else {}).items():
        if found["percent"] is None:
            reporter.say(f"  {name}: no sentences")
            continue
        value, low, high = (found["percent"][key] for key in ("value", "low", "high"))
        reporter.say(
            f"  {name}: {value:.1f} % ({low:.1f} to {high:.1f}) of {found['sentences']:,} sentences score below their "
            "caption"
        )


def corrects_words(conf: str) -> bool:
    """Whether a configuration of `train` learns which words are wrong and what should stand there."""
    return "words" in method_of(conf).answers


def _without(job: Job, file: str, sources: Sources) -> bool:
    """Whether what the model was trained on is gone, in which case there is a warning that a file is left out."""
    read = (sources.prepare, sources.extract, sources.parse)
    missing = [folder for folder in read if folder is not None and not folder.exists()]
    if missing:
        job.warn(f"{file} is left out: {missing[0]}, which the model was trained on, is not there")
    return bool(missing)


def _read_by(job: Job, name: str) -> Path:
    """Where the artifact lies or lay that the model was trained on."""
    trained = job.inputs["train"]
    return input_folder(trained.folder, trained.manifest, name)
