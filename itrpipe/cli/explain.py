"""Explain which words of a caption do not belong to an image."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text as Coloured
from typer import Option

from itrpipe.cli.asked import device_of, train_settings
from itrpipe.cli.options import AskingOptions, JsonOption, MethodOption
from itrpipe.errors import UsageError
from itrpipe.progress import Reporter
from itrpipe.stages.base import Artifact

if TYPE_CHECKING:
    from itrpipe.analysis.words import CorrectedSentence, WordReader


_TONES = ("", "black on #fbe8d6", "black on #f9d3ad", "black on #f6bd84", "bold black on #f2a65a")
"""From a word that belongs to the image to one that does not: one hue, from light to dark."""


@dataclass(kw_only=True)
class Explain(AskingOptions):
    """Show which words of a caption do not belong to an image, and what belongs there.

    Words are coloured by the probability that they do not match the image; those above one half carry their number and
    are replaced in the corrected sentence. The match is the probability that the whole sentence belongs to the image.
    This takes a model that learned to discriminate and correct words: tags-dc. An image is named by its id or file; a
    photograph that is no part of the dataset is read by the extractor of the dataset's features.

    Example: itrpipe explain --image test-000000 --caption "a cat on a red roof"
    """

    method: MethodOption = "tags-dc"
    image: Annotated[str, Option(metavar="ID|FILE", help="Image of the dataset, or a photograph.")]
    caption: Annotated[str, Option(help="Any sentence.")]
    as_json: JsonOption = False

    def run(self) -> None:
        from itrpipe.analysis.words import trains_word_heads

        asked = self.asked("train", as_json=self.as_json)
        step = asked.plan("train", self.method)
        if not trains_word_heads(train_settings(step).model_dump()):
            raise UsageError(
                f"{asked.label} does not learn which words are wrong: its loss has no weight_discrimination above 0; "
                "explain a run of --method tags-dc"
            )
        if not asked.made("explain"):
            return
        found = _explanation(Artifact.of(step.location.folder), self.image, self.caption, device_of(step))
        if self.as_json:
            Reporter().say_json({"dataset": self.dataset, **found})
        else:
            _show(found, asked.reporter)


def _explanation(trained: Artifact, image: str, caption: str, device: str) -> dict[str, Any]:
    """What a model says of a caption beside an image, ready for JSON.

    `score` and `corrected_score` are the probabilities that the caption, and the corrected one, match the image. What
    is corrected is None of a model that was not trained to correct words.
    """
    import numpy as np

    from itrpipe.analysis.words import WordReader, match_probability
    from itrpipe.datasets.prepared import given_split
    from itrpipe.search.photos import find_image
    from itrpipe.training.data import open_split
    from itrpipe.training.saved import load_model

    saved, label = load_model(trained.folder), trained.manifest.label
    shown = find_image(trained.folder, image, device)
    pair = given_split([caption], [shown.image_id], shown.split, "--caption")
    reader = WordReader(saved, pair, device)
    captions, longest = reader.captions, reader.max_tokens
    if captions.lengths[0] > longest or captions.words[0].max() + 1 < len(captions.spans[0]):
        raise UsageError(f"--caption has more than the {longest} tokens that {label} reads; shorten it")
    row = np.zeros(1, dtype=np.int64)
    images = reader.embed(open_split(pair, shown.features, saved.tokens, saved.settings).images(row))
    read = reader.read(images, row, row, captions.tokens)
    (found,) = reader.corrected(row, captions.tokens, read)
    again = reader.read(images, row, row, found.corrected_tokens[None])
    return {
        "run": label,
        "image_id": shown.image_id,
        "split": shown.split,
        "caption": caption,
        "score": found.score,
        "words": [*_words(reader, found)],
        "corrected": found.corrected.text if reader.corrects else None,
        "corrected_score": match_probability(float(again.scores[0])) if reader.corrects else None,
    }


def _words(reader: "WordReader", found: "CorrectedSentence") -> Iterator[dict[str, Any]]:
    """The words of a caption: where they stand, how likely they are wrong, whether the model knows them."""
    (tokens,), (owners,) = reader.captions.tokens, reader.captions.words
    unknown = set(owners[tokens == reader.unknown_id].tolist())
    for number, chance in enumerate(found.mismatch.tolist()):
        flagged = bool(found.flagged[number])
        (start, end), corrected = found.sentence.spans[number], slice(*found.corrected.spans[number])
        yield {
            "text": found.sentence.text[start:end],
            "start": start,
            "end": end,
            "mismatch": chance,
            "flagged": flagged,
            "known": number not in unknown,
            "correction": found.corrected.text[corrected] if flagged and reader.corrects else None,
        }


def _show(found: Mapping[str, Any], reporter: Reporter) -> None:
    words, match = found["words"], f"  match      {found['score']:.2f}"
    reporter.say(f"{found['image_id']} ({found['split']}), {found['run']}", style="bold")
    reporter.console.print(Coloured("  caption    ").append_text(coloured(found["caption"], words)))
    if not any(word["flagged"] for word in words):
        reporter.say("  corrected  nothing: no word is more likely wrong than right")
    elif found["corrected_score"] is not None:
        reporter.say(f"  corrected  {found['corrected']}")
        match += f", corrected {found['corrected_score']:.2f}"
    reporter.say(match)
    if unknown := [word["text"] for word in words if not word["known"]]:
        reporter.say(f"  unknown    {', '.join(unknown)}: not among the words that the model knows", style="yellow")


def coloured(caption: str, words: list[dict[str, Any]]) -> Coloured:
    """A caption whose words are coloured by their probability of a mismatch, with the number behind flagged ones."""
    text, done = Coloured(), 0
    for word in words:
        text.append(caption[done : word["start"]])
        text.append(word["text"], style=_TONES[min(len(_TONES) - 1, int(word["mismatch"] * len(_TONES)))])
        text.append(f" ({word['mismatch']:.2f})" if word["flagged"] else "")
        done = word["end"]
    return text.append(caption[done:])
