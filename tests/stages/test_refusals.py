"""What cannot work is told in one line, with the exit code of its kind, before a model or a list is made."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.chains import Invoke, copied, refused

CASES: list[tuple[str, int, str]] = [
    # Extraction
    ("extract --features vitt", 2, "did you mean 'vit'"),
    ("extract --features vit+vit", 2, "twice"),
    ("extract --features vit+precomp", 3, "--from"),
    ("extract --features scenes+pixels", 4, "photographs"),
    ("extract --features pixels --set hight=3", 2, "did you mean 'height'"),
    ("extract --features frcnn+pixels --set frcnn.nmss=3", 2, "frcnn.nms"),
    ("extract --features pixels --part 3/2", 2, "i/n"),
    ("extract --from nowhere", 3, "nowhere"),
    ("extract --from {empty} --features vit", 2, "known: precomp"),
    ("extract --from {empty}", 2, "of no format"),
    ("extract --features pixels --set height=9999", 2, "4096"),
    ("extract --features frcnn --set max_regions=5", 2, "min_regions = 36"),
    ("extract --features frcnn --set proposals=9", 2, "max_regions = 36"),
    ("extract --from {empty} --map a=b --map a=c", 2, "a twice"),
    ("extract --from {empty} --map regions", 2, "NAME=ARRAY"),
    # Scene graphs
    ("parse --from /no/graphs.json", 3, "/no/graphs.json does not exist"),
    ("parse --from x.json --show 'a dog'", 2, "leave out --from"),
    ("parse --tagger hunta", 2, "'hanta'"),
    ("parse --set workers=-1", 2, "workers = -1"),
    ("parse --from {empty_json}", 4, "100 of 100 captions"),
    # Mining
    ("mine-negatives -b vsnr", 2, "did you mean 'vsrn'?"),
    ("mine-negatives -b scan", 2, "--negatives-from vsrn"),
    ("mine-negatives {vsepp} --set index=ivf", 2, "index = 'ivf' (from command line): torch"),
    ("mine-negatives {vsepp} --set num_lists=4", 2, "num_lists = 4 (from command line): torch"),
    ("mine-negatives {vsepp} --set num_probes=4", 2, "num_probes = 4 (from command line): torch"),
    ("mine-negatives {vsepp} --library faiss --set num_probes=4", 2, "a flat index"),
    ("mine-negatives {vsepp} --library faiss --set index=ivf --set num_lists=13", 2, "num_lists = 13"),
    ("mine-negatives {vsepp} --rescore-with vsepp", 2, "this model mines already"),
    ("mine-negatives {vsepp} --rescore-with VSE++", 2, "this model mines already"),
    ("mine-negatives {vsepp} --rescore-with bfn", 2, "did you mean 'bfan'?"),
    ("mine-negatives {vsepp} --rescore-with bfan --set rescore_texts=6", 2, "rescore_texts = 6"),
    ("mine-negatives {vsepp} --rescore-with bfan --set rescore_images=4", 2, "num_images = 3"),
    ("mine-negatives {vsepp} --set rescore_images=2", 2, "add --rescore-with"),
    ("mine-negatives {vsepp} --guard fne --rescore-with bfan", 2, "rescore_with replaces them"),
    # Sentences
    ("synthesize -d scenes -b vsepp", 2, "give --backbone uniter"),
    ("synthesize -d scenes -b unitre", 2, "did you mean 'uniter'?"),
    ("synthesize -d scenes --by word", 2, "did you mean 'words'?"),
    ("synthesize -d scenes --by vse-c -b uniter", 2, "'backbone'"),
    ("synthesize -d scenes --set temperature=0", 2, "temperature = 0 (from command line): must be greater than 0"),
    ("synthesize -d scenes --set compare=letters", 2, "compare = 'letters'"),
    ("synthesize -d scenes --set maker=magic", 2, "model, rules"),
    ("synthesize -d scenes -m nothing", 2, "'nothing'"),
    ("synthesize -d scenes --language-model /nowhere/gpt2", 3, "/nowhere/gpt2 is not a folder"),
    ("train -m synthetic-triplet -b vsepp --set synthesize.split=test", 2, "split = 'train'"),
    # Backbones that a method does not train
    ("train -m ascl -b vsepp", 2, "it trains ascl"),
    ("train -m itm -b vsepp", 2, "it trains uniter"),
    ("train -m tags -b vsepp", 2, "it trains uniter"),
    ("train -m pretrain -b vsepp", 2, "it trains uniter"),
    ("train -m ssamt -b vsrn", 2, "'vsrn'"),
    ("train -m triplet -b ssamt", 2, "'ssamt'"),
    ("train -m fne -b scan", 2, "inner product"),
    ("train -m fne -b bfan", 2, "inner product"),
    ("train -m fne -b vsepp-order", 2, "inner product"),
    # Losses
    ("train -m fne -b vsepp --set epochs=1", 2, "no negative beyond the batch would ever be drawn"),
    ("train -m aoq-guarded {aoq} --set mine_negatives.guard=none", 2, "guard = 'fne'"),
    ("train {itm} --set itm.loss.sampled_negatives=12", 2, "11 negatives"),
    ("train {itm} --set train.model.initial=x.pt", 2, "model.tokenizer=bert-base-cased"),
    ("train {itm} --set train.model.embed_dim=8 --set train.model.heads=3", 2, "heads = 3"),
    (
        "train {itm} --set train.model.initial=no.pt --set train.model.tokenizer=bert-base-cased",
        3,
        "no.pt does not exist",
    ),
    ("train -m itm -b uniter", 2, "boxes"),
    ("train {tags} --set tags.loss.generator=bank", 2, "loss.weight_words=0"),
    ("train {tags} --set tags.loss.generator=static", 2, "loss.writer=pretrain"),
    ("train -m tags-dc --set tags-dc.loss.generator=bank --set tags-dc.loss.weight_words=0", 2, "use method"),
    ("train {tags} --set tags.loss.sampled_negatives=12", 2, "11 negatives"),
    ("train -m pretrain --set precomp.grid=[2,2] --set pretrain.loss.negatives=12", 2, "12 images"),
    # Generated positives
    ("train --positives ascl -m aoq", 2, "not for aoq"),
    ("train --positives ascl -m ascl", 2, "not for ascl"),
    ("train --positives ascl --negatives synthetic", 2, "not for synthetic-triplet"),
    ("train --positives longer", 2, "'ascl'"),
    # Contrastive training and its encoders
    ("train -m zero-shot", 2, "name one joint model"),
    ("train -m zero-shot --vision random --text random", 2, "name one joint model"),
    ("train -m zero-shot --vision {bert}", 2, "type bert"),
    ("train -m zero-shot --vision {empty}", 3, "no config.json"),
    ("train -m triplet --weigh fne", 2, "--method contrastive"),
    ("train -m aoq --negatives mined", 2, "not for aoq"),
    ("train -m contrastive --negatives mined --set loss.refresh_every=1 -b scan", 2, "no embeddings"),
    ("train -m contrastive --set loss.prior=0.1 -b vsepp", 2, "changes nothing"),
    ("train -m aoq --negatives-from nobody.vsepp", 2, "unknown method 'nobody'"),
    ("train -m contrastive --set loss.temperature=own -b vsepp", 2, "random weights"),
    ("train {refreshed} --set train.batch_by=tokens", 2, "batches of tokens"),
    ("train {refreshed} --set mine_negatives.rescore_with=bfan", 2, "leave rescore_with out"),
    ("train -b dual-encoder --vision /nowhere/vit", 3, "/nowhere/vit is not a folder"),
    ("train --vision random --text random --features precomp", 2, "reads pixels"),
    ("train --vision random --text random --set train.model.width=17", 2, "width = 17"),
    # Fine-tuning
    ("train -m contrastive -b vsepp --set train.adapter=lora", 2, "backbone 'vsepp' has none"),
    ("train -m contrastive -b vsepp --set train.freeze=vision", 2, "encoders of layers"),
    ("train -m contrastive -b vsepp --set train.layer_decay=0.5", 2, "encoders of layers"),
    ("train -m contrastive -b vsepp --set train.average=wise-ft:0.5", 2, "a model that works already"),
    ("train -m contrastive -b vsepp --set train.average=ema", 2, "ema:DECAY"),
    ("train -m contrastive -b vsepp --set train.schedule=plateau", 2, "needs patience"),
    ("train -m contrastive -b vsepp --set train.average=ema:0.9 {plateau}", 2, "keeps others"),
    ("train -m zero-shot --vision {clip} --set train.patience=2", 2, "patience = 2 changes nothing"),
    ("train {random} --set train.adapter=lora", 2, "vision encoder, which are random"),
    ("train {random} --set train.freeze=text", 2, "text encoder, which are random"),
    ("train {random} --set train.average=wise-ft:0.5", 2, "were not trained together"),
    ("train {tuned} --set train.model.embed_dim=8 --set train.average=wise-ft:0.5", 2, "embed_dim = 8"),
    ("train {tuned} --set train.lora_rank=4", 2, "lora_rank = 4 changes nothing"),
    ("train {tuned} --set train.adapter=lora --set 'train.lora_targets=[\"q\"]'", 2, "lora_targets names q"),
    ("train {tuned} --set train.loss.largest_scale=10", 2, "loss.largest_scale=15"),
    ("train {regions} --set train.freeze=vision", 2, "no pretrained encoder"),
    ("train {regions} --set train.freeze=text --set train.adapter=lora", 2, "no encoder for adapter = lora"),
    # Ensembles
    ("evaluate -b vsrn --ensemble-with vsnr.s1", 2, "did you mean 'vsrn'"),
    ("evaluate -b vsrn --ensemble-with aqo.vsrn", 2, "did you mean 'aoq'"),
    ("evaluate -b vsrn --ensemble-with zzz", 2, ", bfan, "),
    ("evaluate -b vsrn --ensemble-with vsrn", 2, "'vsrn' is the evaluated model itself"),
    ("evaluate -b vsrn --ensemble-with triplet.vsrn.s0", 2, "'triplet.vsrn.s0' is the evaluated model itself"),
    ("evaluate -b vsrn --ensemble-with vsrn.s1 --ensemble-with triplet.vsrn.s1", 2, "a second time"),
    ("evaluate -b vsrn --ensemble-with a.b.c", 2, "[method.]backbone[.sN]"),
    ("evaluate -b vsrn --ensemble-with aoq.vsrn.s-1", 2, "is not of the form"),
    ("evaluate -b vsrn --ensemble-with aoq.", 2, "is not of the form"),
    ("evaluate -b vsrn {seven}", 2, "average fewer models"),
    ("evaluate -m triplet --rerank 5", 2, "--rerank 5"),
    ("evaluate -m tags --language-model {empty}", 2, "--method tags-dc"),
    # Sentences that a model is to tell from captions
    ("evaluate -d scenes --discriminate phrase", 2, "did you mean 'phrases'?"),
    ("evaluate -d scenes --discriminate gpt", 2, "phrases, vse-c, words"),
    ("evaluate -d scenes --discriminate phrases.tag", 2, "did you mean 'tags'?"),
    ("evaluate -d scenes --discriminate phrases.tags.x.s1", 2, "NAME[.METHOD][.sN]"),
    ("evaluate -d scenes --discriminate vse-c.tags", 2, "'vse-c.tags' names no model"),
    ("evaluate -d scenes --discriminate words --discriminate words.s0", 2, "'words.s0' names words a second time"),
    ("evaluate -d scenes --discriminate words --ensemble-with vsepp", 2, "leave --ensemble-with out"),
    ("evaluate -d scenes --discriminate words --set synthesize.split=val", 2, "split = 'test'"),
    ("evaluate -d scenes --discriminate words --set words.seed=1", 2, "seed = 0"),
    # Benchmarks
    ("evaluate -b vsepp --benchmark sugarcrep=x", 2, "did you mean 'sugarcrepe'?"),
    ("evaluate -b vsepp --benchmark sugarcrepe", 2, "give NAME=FOLDER"),
    ("evaluate -b vsepp --benchmark scenes=x", 2, "scenes is made and stands alone"),
    ("evaluate -b vsepp --benchmark local=nowhere", 3, "nowhere is no folder"),
    ("evaluate -b vsepp --benchmark scenes --benchmark scenes", 2, "names scenes a second time"),
    ("evaluate -b vsepp --benchmark scenes", 2, "the embedded dataset"),
    ("evaluate -b vsepp --benchmark local={own} --ensemble-with vsepp.s1", 2, "leave --ensemble-with out"),
    ("evaluate -b vsepp --benchmark local={own}", 2, "imported (precomp)"),
    ("evaluate -b vsepp --benchmark aro={own}", 3, "visual_genome_relation.json"),
    ("evaluate -b vsepp -d scenes --benchmark local={own}", 2, "drawings and no photographs"),
    # Embeddings of any model
    ("evaluate --embeddings {rows}", 2, "holds one side"),
    ("evaluate --embeddings {empty}", 2, "images.npy"),
    ("evaluate --embeddings {rows} {rows} --owners none.npy", 3, "none.npy does not exist"),
    ("evaluate --embeddings {rows} {rows} --owners {rows}", 4, "cannot be read as ids"),
    ("evaluate --embeddings {rows} {rows} --name A.b", 2, "lower-case letters"),
    ("evaluate --embeddings {rows} {rows} --name {long}", 2, "100 at most"),
    ("evaluate --embeddings {rows} {rows} --measure cos", 2, "'inner-product'"),
    ("evaluate --embeddings {rows} {rows} --backbone vsrn", 2, "--backbone and --embeddings"),
    ("evaluate --owners {rows}", 2, "belongs to --embeddings"),
    ("evaluate some.npy", 2, "belongs to --embeddings"),
    ("evaluate --method given", 3, "no embeddings 'given' of split 'test'"),
    ("evaluate --method given --benchmark scenes", 2, "is not here"),
    ("evaluate --method given --seed 1 --ensemble-with given.s1", 2, "no seed"),
    # Advice on a second training
    ("advise --make -b bfan", 2, "scores pair by pair"),
    ("advise --make -b vsepp -m fne --set train.loss.warm_epochs=0", 2, "the negatives of its batches"),
    ("advise --make -b vsepp --set train.model.measure=order", 2, "ask for cosine"),
]


@pytest.fixture(scope="module")
def places(finished_chain: Path, saved_encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What commands name: the data of the finished chain, files that do not fit, and options that are long."""
    folder = tmp_path_factory.mktemp("refusals")
    for name in ("empty", "own"):
        (folder / name).mkdir()
    Image.new("RGB", (30, 20)).save(folder / "own" / "0.png")
    record = {"file": "0.png", "caption": "a dog", "negative": ["a cat"]}
    (folder / "own" / "benchmark.jsonl").write_text(json.dumps(record) + "\n")
    np.save(folder / "rows.npy", np.eye(3))
    (folder / "empty.json").write_text("{}")
    lists = "--set mine_negatives.num_texts=5 --set mine_negatives.num_images=3"
    drawn = "--set top_texts=5 --set top_images=3"
    small = "--set train.epochs=1 --set train.batch_size=16 --set train.min_word_count=1"
    narrow = f"-b vsepp {small} --set train.model.embed_dim=8 --set train.model.word_dim=8"
    regions = "--set train.model.images=regions --set train.model.embed_dim=8 --features precomp"
    clip, bert = saved_encoders / "clip", saved_encoders / "bert"
    return {
        "data": copied(finished_chain / "data", folder / "data"),
        "source": finished_chain / "source",
        "empty": folder / "empty",
        "empty_json": folder / "empty.json",
        "own": folder / "own",
        "rows": folder / "rows.npy",
        "long": "a" * 200,
        "clip": clip,
        "bert": bert,
        "vsepp": f"{narrow} --set num_texts=5 --set num_images=3",
        "aoq": f"{narrow} {lists} {drawn}",
        "itm": "-m itm --set precomp.grid=[2,2] --set itm.loss.hard_negatives=3",
        "tags": "-m tags --set precomp.grid=[2,2] --set tags.loss.hard_negatives=3",
        "refreshed": f"-m contrastive --negatives mined {narrow} {lists} {drawn} --set loss.refresh_every=2",
        "plateau": "--set train.schedule=plateau --set train.patience=1",
        "random": "-m contrastive --vision random --text random",
        "tuned": f"-m clip-finetune --vision {clip} --text {clip}",
        "regions": f"-m contrastive -b dual-encoder --text {bert} {regions}",
        "seven": " ".join(f"--ensemble-with triplet-long.vsepp.s{10**9 + number}" for number in range(7)),
    }


def artifacts(root: Path) -> set[Path]:
    """All but features and scene graphs, which a model may need to be refused."""
    return {path.parent for path in root.glob("*/*/*/manifest.json") if not {"extract", "parse"} & {*path.parts}}


@pytest.mark.parametrize(("command", "code", "value"), CASES, ids=[command for command, _, _ in CASES])
def test_what_cannot_work_is_told_in_one_line(
    command: str,
    code: int,
    value: str,
    places: dict[str, object],
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ITRPIPE_DATASET", "tiny")
    root = Path(str(places["data"]))
    before = artifacts(root)
    refused(invoke(*shlex.split(command.format(**places)), "--data", root), code, value)
    assert artifacts(root) == before
    assert not list(tmp_path.iterdir())
