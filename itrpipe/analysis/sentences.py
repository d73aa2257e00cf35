"""Scores of sentences beside the captions that they were made of, by a trained model; only pairs are scored.

Shapes: T captions, S sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.features.store import FeatureFile
from itrpipe.scene_graph.build import SentenceParser
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.data import blocks, longer_captions, open_split

GRAPHS = "graphs"
"""Folder for the scene graphs of sentences, which only resuming needs."""
ParseTexts = Callable[[pa.Table], Path]
"""Rows with caption_id, image_id and text to a folder with their scene graphs."""


def sentence_parser(evaluation: EvaluatedModel) -> ParseTexts | None:
    """Makes scene graphs of sentences, for a model that reads phrases; None for others.

    Raises:
        UsageError: the captions' own graphs came out of a file, or another version of the parser made them.
        MissingInputError: they were removed since.
    """
    if not evaluation.backbone.reads_phrases:
        return None
    graphs = evaluation.existing("parse")
    return SentenceParser(graphs, read_manifest(graphs), evaluation.work / GRAPHS, evaluation.reporter)


@torch.inference_mode()
def compared(
    evaluation: EvaluatedModel,
    parse: ParseTexts | None,
    split: Split,
    features: FeatureFile,
    sentences: pa.Table,
    owners: np.ndarray,
    what: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores sentences and their captions, once each, every image of a block encoded once.

    Args:
        evaluation: of the model.
        parse: see `sentence_parser`.
        split: captions and their images.
        features: of these images.
        sentences: S rows with image_id, that of their caption, and text.
        owners: [S] row of each one's caption among those of the split.
        what: is scored, for the progress.

    Returns:
        float32 [S] each: of the image with the sentence, that of the caption where the model reads both alike, since it
        does not know the words that differ; and of the image with the caption.
    """
    saved, block, device = evaluation.saved, evaluation.block, torch.device(evaluation.place)
    used, owner = np.unique(owners, return_inverse=True)
    images = split.caption_image[np.concatenate([used, owners])]
    order = np.argsort(images, kind="stable")  # all that is said of an image follows each other
    columns = ["image_id", "text"]
    captions = split.captions.select(columns).take(pa.array(used))
    texts = pa.concat_tables([captions, sentences.select(columns)]).take(pa.array(order))
    ids = pa.array([str(row) for row in range(len(texts))], pa.string())
    words = pa.array([tokenize(text) for text in texts["text"].to_pylist()], pa.list_(pa.string()))
    texts = texts.append_column("caption_id", ids).append_column("tokens", words)
    if parse is None:
        data = open_split(Split(split.name, split.images, texts), features, saved.tokens, saved.settings, saved.frame)
    else:
        phrases = CaptionPhrases.read(parse(texts), saved.settings.max_words)
        used_images = pc.SetLookupOptions(texts["image_id"].combine_chunks())
        # Others have no scene graph in the file.
        described = pc.call_function("is_in", [split.images["image_id"]], used_images)
        own = Split(split.name, split.images.filter(described), texts)
        data = open_split(own, features, saved.tokens, saved.settings, phrases=phrases)
    if reason := longer_captions({"captions and negatives": data}):
        evaluation.warn(reason)
    found = np.empty(len(order), dtype=np.float32)
    with evaluation.reporter.task(f"scoring {what}", len(order), "captions and negatives") as task:
        for part in blocks(len(order), block):
            rows, image = np.unique(data.caption_image[part], return_inverse=True)
            seen = saved.model.encode_images(data.images(rows).to(device))
            read = saved.model.encode_texts(data.texts(part).to(device))
            places = torch.from_numpy(image).to(device), torch.arange(len(part))
            found[part] = saved.model.score_at(seen, read, *places).float().cpu().numpy()
            task.advance(len(part))
    place = np.argsort(order)
    sides = place[owner], place[len(used) :]
    caption_scores, scores = (found[side] for side in sides)
    if parse is not None:
        return scores, caption_scores  # equal tokens may have other phrases
    for part in blocks(len(owners), block):
        texts, others = (data.texts(side[part]) for side in sides)
        width = min(texts.tokens.shape[1], others.tokens.shape[1])
        differs = texts.tokens[:, :width] != others.tokens[:, :width]
        real = torch.arange(width) < texts.lengths[:, None]
        alike = (texts.lengths == others.lengths) & ~(differs & real).any(dim=1)
        scores[part] = np.where(alike.numpy(), caption_scores[part], scores[part])
    return scores, caption_scores
