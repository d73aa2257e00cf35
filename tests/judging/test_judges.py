"""Judges that compare captions or vectors, and `itrpipe.judge`, beside loops over pairs."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import itrpipe
from itrpipe.encoders.encoder import open_encoder
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.judging import judge as module
from itrpipe.judging.captions import CaptionsJudge, encode_captions
from itrpipe.judging.declaration import DEFAULT, judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.opened import CURVES, MOST_LOG_ODDS, open_judge, scale_of
from itrpipe.learning.false_negatives import estimate_gaussians, probabilities
from tests.encoders.zoo import LIMIT, WORDS, save

# Images of three, one and two captions, and two captions of nobody's.
CAPTIONS = [
    "a dog runs on the grass",
    "a red dog runs",
    "the dog on grass",
    "a cat sits on the beach",
    "two dogs on the beach",
    "a dog and a cat",
    "a red cat",
    "the grass",
]
OWNERS = np.array([0, 2, 0, 1, 2, 0, -1, -1])
PAIRS = np.array([[2, 0], [0, 1], [1, 6], [0, 3], [0, 4], [2, 7], [0, 3], [1, 0], [1, 5]])
TOLERANCE = 1e-5


def material(**known: Any) -> Material:
    return Material(CAPTIONS, OWNERS, 3, **known)


def own_rows(caption: int) -> list[int]:
    """Rows of the captions of a caption's image, or the caption's alone."""
    if OWNERS[caption] < 0:
        return [caption]
    return np.flatnonzero(OWNERS[caption] == OWNERS).tolist()


def unit_vectors(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_names_are_read_and_written_back() -> None:
    assert str(judge_name("captions")) == DEFAULT
    assert judge_name("dual:a/b:c") == ("dual", "a/b:c")
    for text in ("captions:tfidf", "graphs", "fne:0.01", "itm:x", "vlm:/a/folder"):
        assert str(judge_name(text)) == text
    for text in ("", "caption", "dual", "itm:", "graphs:x", "fne:2", "fne:x"):
        with pytest.raises(ValueError, match=repr(text)):
            judge_name(text)


def test_captions_are_compared_as_the_formula_says() -> None:
    vectors = unit_vectors(len(CAPTIONS), 0)
    cosines = vectors @ vectors.T
    judge = CaptionsJudge(vectors, material())

    def direct(others: list[int], caption: int) -> float:
        found = cosines[caption, others]
        return (found.max() + found.mean()) / 2

    expected = []
    for image, caption in PAIRS:
        captions = np.flatnonzero(image == OWNERS).tolist()
        siblings = np.mean([direct(captions, row) for row in own_rows(caption)])
        expected.append((direct(captions, caption) + siblings) / 2)
    np.testing.assert_allclose(judge(*PAIRS.T), expected, atol=TOLERANCE)

    captions = np.array([4, 0, 3, 6, 2])
    expected = []
    for caption in captions:
        rows = own_rows(caption)
        others = {row: [other for other in rows if other != row] for row in rows}
        if len(rows) == 1:
            expected.append(np.nan)
            continue
        siblings = np.mean([direct(others[row], row) for row in rows])
        expected.append((direct(others[caption], caption) + siblings) / 2)
    np.testing.assert_allclose(judge.own(captions), expected, atol=TOLERANCE)


def test_words_are_compared_by_tf_idf() -> None:
    judge = open_judge(judge_name("captions:tfidf"), material(), "cpu")
    words = sorted({word for caption in CAPTIONS for word in caption.split()})
    counts = np.array([[caption.split().count(word) for word in words] for caption in CAPTIONS], np.float64)
    groups = [[0, 2, 5], [3], [1, 4], [6], [7]]
    frequency = sum((counts[rows].sum(axis=0) > 0).astype(int) for rows in groups)
    weights = counts * np.log((1 + len(groups)) / (1 + frequency))

    def cosine(rows: list[int], others: list[int]) -> float:
        left, right = weights[rows].sum(axis=0), weights[others].sum(axis=0)
        return left @ right / np.linalg.norm(left) / np.linalg.norm(right)

    expected = [cosine(groups[image], own_rows(caption)) for image, caption in PAIRS]
    np.testing.assert_allclose(judge(*PAIRS.T), expected, atol=TOLERANCE)
    expected = [cosine([4], [1]), cosine([0], [2, 5]), np.nan, np.nan]
    np.testing.assert_allclose(judge.own(np.array([4, 0, 3, 6])), expected, atol=TOLERANCE)


def test_graphs_tell_who_does_what() -> None:
    captions = [
        "a dog chases a black cat",
        "a dog chases a black cat",
        "a black cat chases a dog",
        "a bus stops",
        "a dog and a black cat",
    ]
    judge = open_judge(judge_name("graphs"), Material(captions, np.arange(5), 5), "cpu")
    same, turned, other, less = judge(np.zeros(4, np.int64), np.array([1, 2, 3, 4]))
    assert same == pytest.approx(1)
    assert 1 > turned > 0
    assert 1 > less > 0
    assert other == 0


def test_captions_without_any_word_fit_nothing() -> None:
    for name in ("captions:tfidf", "graphs"):
        judge = open_judge(judge_name(name), Material(["", "a dog", " "], np.array([0, 1, 0]), 2), "cpu")
        assert judge(np.array([1, 0]), np.array([0, 1])).tolist() == [0, 0]
        assert judge.own(np.array([0, 2])).tolist() == [0, 0]


def test_a_judge_that_cannot_tell_own_captions_from_others_is_refused() -> None:
    judge = CaptionsJudge(unit_vectors(400, 0), Material([""] * 400, np.arange(400) // 2, 200))
    with pytest.raises(UsageError, match="no help"):
        scale_of(judge, judge_name("captions"))


def test_encoded_captions_are_those_of_the_encoder_alone(tmp_path: Path) -> None:
    folder = save("bert", tmp_path)
    encoder, _ = open_encoder(str(folder), sides=("text",))
    captions = [" ".join(WORDS[:count]) for count in (3, 12, 1, 5)]
    # What is behind the positions of the encoder is not read.
    captions += [" ".join(WORDS + WORDS), " ".join(WORDS + WORDS[: LIMIT - 2 - len(WORDS)])]
    vectors = encode_captions(encoder, captions, "cpu")
    for caption, vector in zip(captions, vectors, strict=True):
        ids = encoder.texts.tokenizer(caption)["input_ids"][: LIMIT - 1]
        if len(ids) == LIMIT - 1:
            ids = [*ids, encoder.texts.tokenizer.sep_token_id]
        ids = ids[:LIMIT]
        with torch.no_grad():
            alone = encoder.encode_texts(torch.tensor([ids]), torch.tensor([len(ids)]))[0]
        np.testing.assert_allclose(vector, alone / alone.norm(), atol=TOLERANCE)
    np.testing.assert_array_equal(vectors[-1], vectors[-2])


def test_a_joint_model_compares_photographs_with_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("itrpipe.judging.opened.LEAST_AREA", 0.0)  # its weights are random
    folder = save("clip", tmp_path / "model")
    photographs: list[Any] = list(np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), dtype=np.uint8))
    Image.fromarray(photographs[2]).save(tmp_path / "image.png")
    photographs[2] = tmp_path / "image.png"
    judged = itrpipe.judge(PAIRS, CAPTIONS, OWNERS, f"dual:{folder}", photographs=photographs, device="cpu")

    encoder, _ = open_encoder(str(folder))
    image = np.asarray(Image.open(tmp_path / "image.png"))
    tokens = torch.tensor([encoder.texts.tokenizer(CAPTIONS[0])["input_ids"]])
    with torch.no_grad():
        vision = encoder.encode_images(encoder.images.framed(image)[None])
        text = encoder.encode_texts(tokens, torch.tensor([tokens.shape[1]]))
    assert judged.scores[0] == pytest.approx(float(torch.cosine_similarity(vision, text)), abs=TOLERANCE)


def test_what_is_encoded_already_needs_no_model() -> None:
    encoded = {"vision": unit_vectors(3, 0), "text": unit_vectors(len(CAPTIONS), 1)}
    products = encoded["vision"] @ encoded["text"].T
    judge = open_judge(judge_name("dual:nowhere"), material(encoded=encoded), "cpu")
    np.testing.assert_allclose(judge(*PAIRS.T), products[PAIRS[:, 0], PAIRS[:, 1]], atol=TOLERANCE)
    assert judge.own(np.array([1]))[0] == pytest.approx(products[2, 1], abs=TOLERANCE)
    assert open_judge(judge_name("captions:nowhere"), material(encoded=encoded), "cpu")(*PAIRS.T).shape == (9,)


def test_log_odds_of_fne_are_those_of_its_posterior() -> None:
    rng = np.random.default_rng(0)
    owners = np.arange(60) // 2
    images = rng.normal(size=(30, 8)).astype(np.float32)
    texts = images[owners] + 0.3 * rng.normal(size=(60, 8)).astype(np.float32)
    pairs = rng.integers([30, 60], size=(50, 2))
    judged = itrpipe.judge(pairs, ["a"] * 60, owners, "fne:0.01", vectors=(images, texts))
    scores = (images[pairs[:, 0]] * texts[pairs[:, 1]]).sum(axis=1)
    expected = probabilities(scores, estimate_gaussians(images, texts, owners, batch_size=32), 0.01)
    np.testing.assert_allclose(1 / (1 + np.exp(-judged.scores)), expected, atol=TOLERANCE)
    inside = np.abs(judged.scores) < MOST_LOG_ODDS
    np.testing.assert_allclose(judged.probabilities[inside], expected[inside], atol=TOLERANCE)

    with pytest.raises(UsageError, match="too few to estimate from"):
        itrpipe.judge(pairs, ["a"] * 60, owners, "fne", vectors=(0 * images, texts))


def test_a_scale_puts_random_pairs_at_zero_and_own_ones_at_one() -> None:
    vectors = np.repeat(unit_vectors(200, 0), 3, axis=0) + 0.3 * unit_vectors(600, 1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for captions_of_image in (3, 1):
        owners = np.arange(600) // captions_of_image
        known = Material(["a"] * 600, owners, owners[-1] + 1, encoded={"text": vectors})
        name = judge_name("captions")
        judge = open_judge(name, known, "cpu")
        scale = scale_of(judge, name)
        slope, middle, own = CURVES["captions"]
        expected = scale.mismatch + own * (1 - scale.mismatch)
        if captions_of_image > 1:
            expected = np.median(judge.own(np.arange(600)))
        assert scale.match == pytest.approx(expected, abs=0.02)
        assert abs(scale.mismatch) < 0.4
        ends = scale.log_odds(np.array([scale.mismatch, scale.match, -1e6, 1e6]))
        np.testing.assert_allclose(ends, [-slope * middle, slope * (1 - middle), -MOST_LOG_ODDS, MOST_LOG_ODDS])
    assert tuple(scale_of(judge, judge_name("itm:x"))) == (0, 1, 1, 0)


def test_judges_that_are_named_together_are_combined() -> None:
    names = ["captions:tfidf", "graphs"]
    captions = ["a dog runs", "a dog", "a red bus", "the red bus", "a cat sits", "a cat", "a dog and a bus"]
    given = [[0, 2], [0, 6], [1, 6], [2, 1]], captions, [0, 0, 1, 1, 2, 2, -1]
    both = itrpipe.judge(*given, names)
    single = [itrpipe.judge(*given, name) for name in names]
    np.testing.assert_array_equal(both.scores, np.stack([each.scores for each in single], axis=1))
    odds = [np.log(each.probabilities / (1 - each.probabilities)) for each in single]
    np.testing.assert_allclose(both.probabilities, 1 / (1 + np.exp(-np.mean(odds, axis=0))), atol=1e-4)
    assert both.share is None


def test_answers_calibrate_what_is_judged() -> None:
    rng = np.random.default_rng(0)
    topics = rng.integers(0, 4, 120)
    captions = [f"{WORDS[1 + topic]} {WORDS[5 + topic]} {number}" for number, topic in enumerate(topics)]
    pairs = rng.integers(120, size=(400, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    right = topics[pairs[:, 0]] == topics[pairs[:, 1]]
    answers = np.where(rng.random(len(pairs)) < 0.5, right, -1)
    judged = itrpipe.judge(pairs, captions, np.arange(120), "captions:tfidf", answers=answers)
    assert judged.calibration.decisions == (answers >= 0).sum()
    assert ((judged.probabilities > 0.5) == right).all()
    assert judged.share is not None
    assert judged.share.low - 0.02 <= right.mean() <= judged.share.high + 0.02


REFUSED: dict[str, tuple[dict[str, Any], type[ItrpipeError], str]] = {
    "a judge that is not there": ({"by": "oracle"}, UsageError, "'oracle' is none of"),
    "pairs of another shape": ({"pairs": [0, 1]}, DataError, "pairs are"),
    "pairs of three": ({"pairs": [[0, 1, 2]]}, DataError, "pairs are"),
    "a caption too few": ({"captions": CAPTIONS[1:]}, DataError, "7 captions and 8 owners"),
    "a caption that is no text": ({"captions": [None, *CAPTIONS[1:]]}, DataError, "caption 0 is None"),
    "a pair beyond the captions": ({"pairs": [[0, 8]]}, DataError, "hold 8, which is none of 0..7"),
    "padding of lists": ({"pairs": [[0, -1]]}, DataError, "hold -1"),
    "an image beyond the photographs": ({"photographs": ["a.jpg"]}, DataError, "hold 2, which is none of 0..0"),
    "an answer too few": ({"answers": [1]}, DataError, "1 answers and 9 pairs"),
    "another answer": ({"answers": [2] * 9}, DataError, "answers hold 2"),
    "an image without captions": ({"pairs": [[3, 0]]}, UsageError, "image 3 has no captions"),
    "no photographs": ({"by": "dual:MODEL"}, UsageError, "looks at photographs"),
    "a model of captions alone": (
        {"by": "dual:TEXT", "photographs": ["a.jpg"] * 3},
        MissingInputError,
        "no encoder of images",
    ),
    "a photograph that is not there": (
        {"by": "dual:MODEL", "photographs": ["/none/a.jpg"] * 3},
        DataError,
        "image 0: /none/a.jpg",
    ),
    "no vectors": ({"by": "fne"}, UsageError, "reads the vectors of the mining model"),
    "vectors of other captions": ({"by": "fne", "vectors": (np.eye(3), np.eye(3))}, DataError, "do not fit"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_documented_to_be_refused_is_refused(what: str, tmp_path: Path) -> None:
    changes, error, message = REFUSED[what]
    given = {"pairs": PAIRS, "captions": CAPTIONS, "owners": OWNERS, "by": "captions:tfidf", **changes}
    given["by"] = given["by"].replace("MODEL", str(tmp_path / "clip")).replace("TEXT", str(tmp_path / "bert"))
    for name in ("clip", "bert"):
        if name in given["by"]:
            save(name, tmp_path / name)
    with pytest.raises(error, match=message):
        itrpipe.judge(**given)


def test_the_example_of_the_function_is_right() -> None:
    assert doctest.testmod(module).failed == 0
