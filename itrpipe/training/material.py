"""Open the data that judges read of a training set: captions, photographs, scene graphs, vectors of several models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.datasets.definition import image_root
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.embeddings import EMBEDDINGS, EmbeddingRows
from itrpipe.features.extraction import ImageFiles
from itrpipe.judging.material import Material
from itrpipe.scene_graph.stored import GRAPH_SCHEMA, SceneGraphFile
from itrpipe.storage.arrays import ArrayFile
from itrpipe.storage.tables import rows_of
from itrpipe.training.data import FROZEN_VECTORS

TRAIN = "train"


def open_material(inputs: Mapping[str, Path], *, looks: bool) -> Material:
    """Open the images and captions that a model has embedded, as a judge reads them.

    Args:
        inputs: folders of the artifacts that the stage `judge` reads, by the names of its inputs; the model as `model`.
        looks: whether photographs are read.

    Raises:
        MissingInputError: there are no photographs to read.
        DataError: a file is damaged.
    """
    embeddings = EmbeddingRows.open(inputs["model"] / EMBEDDINGS, TRAIN)
    split = PreparedDataset.open(inputs["prepare"], tokens=False).split(TRAIN)
    image_ids, caption_ids = embeddings.ids()
    images = rows_of(pa.array(image_ids), split.images["image_id"])
    captions = rows_of(pa.array(caption_ids), split.captions["caption_id"])
    texts = split.captions["text"].take(captions).to_pylist()

    photographs = None
    if looks:
        photographs = ImageFiles.of_split(image_root(inputs["prepare"]), split).of(images)
    graphs = None
    if "parse" in inputs:
        file = SceneGraphFile(inputs["parse"])
        rows = rows_of(pa.array(caption_ids), file.read(["caption_id"])["caption_id"])
        graphs = file.read(GRAPH_SCHEMA.names).take(rows)
    encoded = {}
    for side, rows in (("text", captions), ("vision", images)):  # inputs that hold vectors of the judge's encoder
        if side in inputs:
            vectors = ArrayFile(inputs[side] / FROZEN_VECTORS)[TRAIN].mapped()[rows]
            encoded[side] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return Material(
        texts,
        embeddings.owners.read(),
        len(image_ids),
        photographs,
        graphs,
        (embeddings.images, embeddings.texts),
        encoded,
    )
