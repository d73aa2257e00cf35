"""The model card: what the hub reads of it, its table, and the papers that it cites."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from itrpipe import papers
from itrpipe.evaluation.metrics import PROTOCOLS
from itrpipe.exporting.card import Card, metric_title, render
from itrpipe.exporting.citations import bibliography, papers_of
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.declaration import methods
from itrpipe.methods.tags_dc.declaration import TagsDc
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.registry import backbones
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.models.vsrn.declaration import Vsrn

FULL = {"i2t_r1": {"value": 43.84, "low": 40.0, "high": 47.96}, "rsum": {"value": 400.0, "low": 390.0, "high": 410.0}}
CARD = Card(
    title="VSE++, AOQ, mine",
    run="aoq.vsepp",
    backbone="vsepp",
    conf="aoq",
    dataset="mine",
    split="test",
    license=None,
    embeds=True,
    reads="its features",
    photographs=True,
    results={"full": FULL, "oracle": {**FULL, "i2t_map_at_r": {"value": 5.0}}},
    level=0.95,
    counts={"train": (2000, 10000), "test": (100, 500)},
    fingerprints={"train/aoq.vsepp-0123abcd": "0123abcd"},
    commands=("itrpipe train --method aoq",),
    trained="2026-01-31T23:59:59+00:00",
    versions={"itrpipe": "0.1.0", "torch": "2.8.0"},
    files={"model.safetensors": "weights"},
    papers=(papers.AOQ,),
)


def test_a_table_has_every_metric_under_every_protocol() -> None:
    text = render(CARD)
    assert (
        "| metric | full | oracle | chance |\n|---|---|---|---|\n"
        "| Image to text R@1 | 43.8 [40.0, 48.0] | 43.8 [40.0, 48.0] | 1.0 |\n" in text
    )
    assert "| Image to text mAP@R |  | 5.0 |  |\n| RSum | 400.0 [390.0, 410.0] | 400.0 [390.0, 410.0] | 31.6 |" in text
    assert "95 % bootstrap intervals" in text
    assert "- `oracle`: as `full`, with all correct matches counted.\n" in text


def test_the_hub_reads_every_protocol_as_results_of_its_own() -> None:
    data = ModelCard(render(CARD)).data
    found = {(each.dataset_config, each.metric_type): each.metric_value for each in data.eval_results or []}
    assert found == {
        ("full", "i2t_r1"): 43.84,
        ("full", "rsum"): 400.0,
        ("oracle", "i2t_r1"): 43.84,
        ("oracle", "i2t_map_at_r"): 5.0,
        ("oracle", "rsum"): 400.0,
    }
    assert data.model_name == "VSE++, AOQ, mine"
    assert data.tags == ["image-text-retrieval", "itrpipe", "vsepp", "aoq"]


def test_a_license_is_told_only_where_it_is_known() -> None:
    assert "license" not in render(CARD)
    assert ModelCard(render(replace(CARD, license="mit"))).data.license == "mit"


def test_a_method_named_after_its_backbone_is_one_tag() -> None:
    data = ModelCard(render(replace(CARD, backbone="ssamt", conf="ssamt"))).data
    assert data.tags == ["image-text-retrieval", "itrpipe", "ssamt"]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_is_explained(name: str) -> None:
    assert f"- `{name}`: {PROTOCOLS[name].description}.\n" in render(replace(CARD, results={name: FULL}))


def test_every_metric_of_a_ranking_has_a_title() -> None:
    import numpy as np

    from itrpipe.evaluation.metrics import evaluate

    names = evaluate("full", np.eye(3), np.arange(3))
    titles = {metric_title(name) for name in [*names, "t2i_map_at_r", "t2i_r_precision"]}
    assert len(titles) == len(names) + 2
    assert {"RSum", "Text to image R@10", "Image to text median rank", "Text to image R-Precision"} <= titles


# Citations


@pytest.mark.parametrize("method", methods())
def test_every_training_has_a_paper(method: str) -> None:
    for backbone in backbones().values():
        assert papers_of(methods()[method](), backbone())


def test_a_paper_of_method_and_backbone_is_cited_once() -> None:
    assert papers_of(Triplet(), Vsepp()) == [papers.VSEPP]
    assert papers_of(Triplet(synthetic_sentences=4), Vsepp()) == [papers.VSEPP, papers.VSE_C]
    assert papers_of(Triplet(generated_positives="either"), Vsrn()) == [papers.VSEPP, papers.ASCL, papers.VSRN]
    assert papers_of(Aoq(false_negatives="weigh"), Vsrn()) == [papers.AOQ, papers.FNE, papers.VSRN]
    assert papers_of(Aoq(), Scan()) == [papers.AOQ, papers.SCAN]
    assert papers_of(TagsDc(), Uniter()) == [papers.TAGS_DC, papers.UNITER]


@pytest.mark.parametrize(
    ("vision", "text", "cited"),
    [
        ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch32", [papers.VSEPP, papers.CLIP]),
        ("google/siglip2-base-patch16-224", "google/siglip2-base-patch16-224", [papers.VSEPP, papers.SIGLIP]),
        ("models/ours", "models/ours", [papers.VSEPP]),
        ("google/vit-base-patch16-384", "bert-base-uncased", [papers.VSEPP, papers.FNE]),
    ],
)
def test_encoders_that_were_trained_together_are_not_those_of_fne(
    vision: str, text: str, cited: list[papers.Paper]
) -> None:
    assert papers_of(Triplet(), DualEncoder(vision=vision, text=text)) == cited


def test_bibtex_is_whole() -> None:
    every = [each for each in vars(papers).values() if isinstance(each, papers.Paper)]
    text = bibliography(every)
    entries = re.findall(r"^@(\w+)\{([\w-]+),\n((?:  \w+ = \{.*\},\n)+)\}$", text, re.MULTILINE)
    assert len(entries) == len(every) == len({key for _, key, _ in entries})
    for kind, _, fields in entries:
        names = re.findall(r"^  (\w+) = ", fields, re.MULTILINE)
        assert names[:2] == ["title", "author"]
        assert {"inproceedings": {"booktitle", "year"}, "article": {"journal", "year"}, "misc": set()}[kind] <= {*names}
        assert all(line.count("{") == line.count("}") for line in fields.splitlines())
        assert text.isascii()
