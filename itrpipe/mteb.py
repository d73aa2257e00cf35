"""A trained model in mteb (https://github.com/embeddings-benchmark/mteb), with `pip install itrpipe[interop]`.

mteb.evaluate(Encoder(itrpipe.load("vsrn-aoq"), "USER/vsrn-aoq"), mteb.get_tasks(["Flickr30kT2IRetrieval"]))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.embeddings import INNER_PRODUCT

try:
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction
except ImportError as error:
    raise MissingInputError(f"mteb 2 cannot be imported ({error}); run pip install 'itrpipe[interop]'") from None


class Encoder(AbsEncoder):
    """Encodes the images and captions of a task of mteb 2.

    Args:
        model: a `RetrievalModel`, with embeddings that are compared by inner product.
        name: of the results, in the form `organisation/model`.
        revision: of the model, for the results.

    Raises:
        UsageError: its embeddings are compared otherwise, or the name has another form.
    """

    def __init__(self, model: Any, name: str = "itrpipe/model", revision: str = "none") -> None:
        if model.measure != INNER_PRODUCT:
            raise UsageError(
                f"mteb compares embeddings by inner product and this model's by {model.measure}; choose another model"
            )
        if name.count("/") != 1 or not all(name.split("/")):
            raise UsageError(f"name = {name!r}: mteb names models organisation/model, such as itrpipe/vsrn-aoq")
        self.model = model
        about = {
            "name": name,
            "revision": revision,
            "modalities": ["image", "text"],
            "framework": ["PyTorch"],
            "similarity_fn_name": ScoringFunction.DOT_PRODUCT,
            "use_instructions": False,
        }
        self.mteb_model_meta = ModelMeta.create_empty(about)

    def encode(self, inputs: Any, *, task_metadata: Any, batch_size: int = 32, **kwargs: Any) -> np.ndarray:
        """Return embeddings [N, D] float32 of N images or N captions.

        Args:
            inputs: batches with lists under `image` or under `text`.
            task_metadata: of the task.
            batch_size: at a time.
            kwargs: split, subset, kind of prompt and further options of mteb, which change nothing here.

        Raises:
            UsageError: the task pairs an image and a text in one input, or has other inputs.
        """
        encoders = {"image": self.model.encode_images, "text": self.model.encode_texts}
        vectors = []
        for batch in inputs:
            kinds = [kind for kind in encoders if kind in batch]
            if len(kinds) != 1:
                held = " and ".join(kinds or batch)
                raise UsageError(
                    f"{task_metadata.name} has inputs with {held}; this model encodes images or captions, one at a time"
                )
            (kind,) = kinds
            vectors.append(encoders[kind](list(batch[kind]), batch_size=batch_size))
        return np.concatenate(vectors)
