"""What cannot work is told in one line, with the exit code of its kind, before a model or a list is made.

A row belongs to an arrangement, the fixture that gives a data folder: `finished_chain` and the other chains of
`tests.chains`, `data_root` for an empty one. Words in braces are those of `places`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.chains import CLIP, UNITER, Invoke, copied, encoders_of, refused, sets, tags_loss
from tests.conftest import TINY as TINY_VSEPP

TINY, PAIRS, TAGS = "finished_chain", "pairs_chain", "tags_chain"
OF_SCENES = {"scenes_chain", "ascl_chain", "tags_chain"}
ROWS: list[tuple[str, str, int, str]] = [
    # What click reads, and values that are empty as an unset variable is
    (TINY, "evalute", 2, "Did you mean 'evaluate'?; see `itrpipe --help`"),
    (TINY, "train --epochz 3", 2, "No such option: --epochz; see `itrpipe train --help`"),
    (TINY, "search 'a dog' --top 0", 2, "Invalid value for '--top': "),
    (TINY, "index", 2, "Missing option '--photos'; see `itrpipe index --help`"),
    (TINY, "evaluate --split tset", 2, "'tset' is not one of 'test', 'val', 'train'"),
    (TINY, "index --photos ''", 2, "empty value"),
    (TINY, "index --photos=", 2, "empty value"),
    (TINY, "train --name ' '", 2, "empty value"),
    (TINY, "train -d ''", 2, "empty value"),
    (TINY, "report --compare '' x", 2, "empty value"),
    (TINY, "search ''", 2, "empty value"),
    # Names that there are not
    (TINY, "train --method aqo", 2, "did you mean 'aoq'"),
    (TINY, "train --backbone vsnr", 2, "did you mean 'vsrn'"),
    (TINY, "show trian", 2, "did you mean 'train'"),
    (TINY, "show nosuch", 2, "known: prepare, extract, parse, train, mine-negatives,"),
    (TINY, "show train aqo", 2, "did you mean 'aoq'"),
    (TINY, "run dmeo", 2, "did you mean 'demo'"),
    (TINY, "train -d {long}", 2, "100 at most"),
    (TINY, "train -d ../x", 2, "'../x'"),
    (TINY, "train -d nope", 3, "'nope'"),
    (TINY, "evaluate -d nope", 3, "'nope'"),
    (TINY, "report -d nope", 3, "itrpipe evaluate --dataset nope"),
    (TINY, "status -d nope", 3, "no dataset 'nope'"),
    (TINY, "gc -d nope", 3, "no dataset 'nope'"),
    (TINY, "prepare -d nope", 3, "--source"),
    (TINY, "prepare -d nope --source /no/where", 3, "--source /no/where does not exist"),
    (TINY, "extract -d nope", 3, "'nope'"),
    (TINY, "extract --features scenes --from .", 2, "'scenes'"),
    (TINY, "prepare -d scenes --source .", 2, "takes no --source"),
    (TINY, "export --to /", 2, "--to / exists and is not empty"),
    (TINY, "run demo --only contrastive.bert", 2, "did you mean 'contrastive.vsrn'?"),
    (TINY, "run demo --only xyz", 2, "it has contrastive-batch.vsrn, contrastive-time.vsrn, "),
    # Values of settings
    (TINY, "train --device tpu", 2, "device = 'tpu'"),
    (TINY, "train --seed -1", 2, "seed = -1 (from command line)"),
    (TINY, "train --set epoch=3", 2, "did you mean 'epochs'"),
    (TINY, "train --set loss.margn=1", 2, "'loss.margn' of method 'triplet' (from command line)"),
    ("data_root", "train -d scenes --method tags-dc --set train.loss.copie=1", 2, "did you mean 'loss.copies'"),
    (TINY, "train --set epochs", 2, "'epochs' is not of the form key=value"),
    (TINY, "train --seed 1 --set seed=2", 2, "seed is given twice"),
    (TINY, "train --set learning_rate=nan --set learning_rate=nan", 2, "finite number"),
    (TINY, "train --set train.epochs={{}}", 2, "--set train.epochs={} is an empty table, which sets nothing"),
    (TINY, "train --set loss={{margin={{}}}}", 2, "--set loss.margin={} is an empty table"),
    (TINY, "train --set 'epochs=3\nbatch_size=4'", 2, "epochs = '3"),
    (TINY, f"train --set seed=1{'0' * 30}", 2, "it should be 9,223,372,036,854,775,807 at most"),
    (TINY, f"train --set seed={'9' * 5000}", 2, "has thousands of digits"),
    (TINY, f"train --set epochs={'[' * 5000}", 2, "lists in lists in lists"),
    (TINY, "train --set 'decay_at=[1, 99999999999]'", 2, "decay_at = [1, 99999999999]"),
    (TINY, "train --set word_dim=99999999999", 2, "65536"),
    (TINY, "prepare --set workers=100000", 2, "4096"),
    (TINY, "report --set train.epochs=3 --dry-run", 2, "is read by no step"),
    # Extraction
    (TINY, "extract --features vitt", 2, "did you mean 'vit'"),
    (TINY, "extract --features vit+vit", 2, "twice"),
    (TINY, "extract --features vit+precomp", 3, "--from"),
    (TINY, "extract --features scenes+pixels", 4, "photographs"),
    (TINY, "extract --features pixels --set hight=3", 2, "did you mean 'height'"),
    (TINY, "extract --features frcnn+pixels --set frcnn.nmss=3", 2, "frcnn.nms"),
    (TINY, "extract --features pixels --part 3/2", 2, "i/n"),
    (TINY, "extract --from nowhere", 3, "nowhere"),
    (TINY, "extract --from {empty} --features vit", 2, "known: precomp"),
    (TINY, "extract --from {empty}", 2, "of no format"),
    (TINY, "extract --features pixels --set height=9999", 2, "4096"),
    (TINY, "extract --features frcnn --set max_regions=5", 2, "min_regions = 36"),
    (TINY, "extract --features frcnn --set proposals=9", 2, "max_regions = 36"),
    (TINY, "extract --from {empty} --map a=b --map a=c", 2, "a twice"),
    (TINY, "extract --from {empty} --map regions", 2, "NAME=ARRAY"),
    # Scene graphs
    (TINY, "parse --from /no/graphs.json", 3, "/no/graphs.json does not exist"),
    (TINY, "parse --from x.json --show 'a dog'", 2, "leave out --from"),
    (TINY, "parse --tagger hunta", 2, "'hanta'"),
    (TINY, "parse --set workers=-1", 2, "workers = -1"),
    (TINY, "parse --from {empty_json}", 4, "100 of 100 captions"),
    # Mining
    (TINY, "mine-negatives -b vsnr", 2, "did you mean 'vsrn'?"),
    (TINY, "mine-negatives -b scan", 2, "--negatives-from vsrn"),
    (TINY, "mine-negatives {vsepp} --set index=ivf", 2, "index = 'ivf' (from command line): torch"),
    (TINY, "mine-negatives {vsepp} --set num_lists=4", 2, "num_lists = 4 (from command line): torch"),
    (TINY, "mine-negatives {vsepp} --set num_probes=4", 2, "num_probes = 4 (from command line): torch"),
    (TINY, "mine-negatives {vsepp} --library faiss --set num_probes=4", 2, "a flat index"),
    (TINY, "mine-negatives {vsepp} --library faiss --set index=ivf --set num_lists=13", 2, "num_lists = 13"),
    (TINY, "mine-negatives {vsepp} --rescore-with vsepp", 2, "this model mines already"),
    (TINY, "mine-negatives {vsepp} --rescore-with VSE++", 2, "this model mines already"),
    (TINY, "mine-negatives {vsepp} --rescore-with bfn", 2, "did you mean 'bfan'?"),
    (TINY, "mine-negatives {vsepp} --rescore-with bfan --set rescore_texts=6", 2, "rescore_texts = 6"),
    (TINY, "mine-negatives {vsepp} --rescore-with bfan --set rescore_images=4", 2, "num_images = 3"),
    (TINY, "mine-negatives {vsepp} --set rescore_images=2", 2, "add --rescore-with"),
    (TINY, "mine-negatives {vsepp} --guard fne --rescore-with bfan", 2, "rescore_with replaces them"),
    # Sentences
    (TINY, "synthesize -d scenes -b vsepp", 2, "give --backbone uniter"),
    (TINY, "synthesize -d scenes -b unitre", 2, "did you mean 'uniter'?"),
    (TINY, "synthesize -d scenes --by word", 2, "did you mean 'words'?"),
    (TINY, "synthesize -d scenes --by vse-c -b uniter", 2, "'backbone'"),
    (
        TINY,
        "synthesize -d scenes --set temperature=0",
        2,
        "temperature = 0 (from command line): must be",
    ),
    (TINY, "synthesize -d scenes --set compare=letters", 2, "compare = 'letters'"),
    (TINY, "synthesize -d scenes --set maker=magic", 2, "model, rules"),
    (TINY, "synthesize -d scenes -m nothing", 2, "'nothing'"),
    (TINY, "synthesize -d scenes --language-model /nowhere/gpt2", 3, "/nowhere/gpt2 is not a folder"),
    (TINY, "train -m synthetic-triplet -b vsepp --set synthesize.split=test", 2, "split = 'train'"),
    # Backbones that a method does not train
    (TINY, "train -m ascl -b vsepp", 2, "it trains ascl"),
    (TINY, "train -m itm -b vsepp", 2, "it trains uniter"),
    (TINY, "train -m tags -b vsepp", 2, "it trains uniter"),
    (TINY, "train -m pretrain -b vsepp", 2, "it trains uniter"),
    (TINY, "train -m ssamt -b vsrn", 2, "'vsrn'"),
    (TINY, "train -m triplet -b ssamt", 2, "'ssamt'"),
    (TINY, "train -m fne -b scan", 2, "inner product"),
    (TINY, "train -m fne -b bfan", 2, "inner product"),
    (TINY, "train -m fne -b vsepp-order", 2, "inner product"),
    # What follows and makes
    (TINY, "train -m triplet -b vsepp --track tensorbord", 2, "did you mean 'tensorboard'?"),
    (TINY, "extract --features pixels --address auto", 2, "add --engine ray"),
    # Losses
    (TINY, "train -m fne -b vsepp --set epochs=1", 2, "no negative beyond the batch would ever be drawn"),
    (TINY, "train -m aoq-guarded {aoq} --set mine_negatives.guard=none", 2, "guard = 'fne'"),
    (TINY, "train {itm} --set itm.loss.sampled_negatives=12", 2, "11 negatives"),
    (TINY, "train {itm} --set train.model.initial=x.pt", 2, "model.tokenizer=bert-base-cased"),
    (TINY, "train {itm} --set train.model.embed_dim=8 --set train.model.heads=3", 2, "heads = 3"),
    (TINY, "train {itm} {tokenizer} --set train.model.initial=no.pt", 3, "no.pt does not exist"),
    (TINY, "train -m itm -b uniter", 2, "boxes"),
    (TINY, "train {tags} --set tags.loss.generator=bank", 2, "loss.weight_words=0"),
    (TINY, "train {tags} --set tags.loss.generator=static", 2, "loss.writer=pretrain"),
    (TINY, "train -m tags-dc --set tags-dc.loss.generator=bank --set tags-dc.loss.weight_words=0", 2, "use method"),
    (TINY, "train -m pretrain --set precomp.grid=[2,2] --set pretrain.loss.negatives=12", 2, "12 images"),
    (TINY, "train -b vsepp --set min_word_count=1000", 2, "min_word_count = 1,000"),
    (TINY, "train -b vsepp --set encode_chunk=-1", 2, "0 for the whole batch, or auto"),
    # Generated positives
    (TINY, "train --positives ascl -m aoq", 2, "not for aoq"),
    (TINY, "train --positives ascl -m ascl", 2, "not for ascl"),
    (TINY, "train --positives ascl --negatives synthetic", 2, "not for synthetic-triplet"),
    (TINY, "train --positives longer", 2, "'ascl'"),
    # Contrastive training and its encoders
    (TINY, "train -m zero-shot", 2, "name one joint model"),
    (TINY, "train -m zero-shot --vision random --text random", 2, "name one joint model"),
    (TINY, "train -m zero-shot --vision {bert}", 2, "type bert"),
    (TINY, "train -m zero-shot --vision {empty}", 3, "no config.json"),
    (TINY, "train -m triplet --weigh fne", 2, "--method contrastive"),
    (TINY, "train -m aoq --negatives mined", 2, "not for aoq"),
    (TINY, "train -m contrastive --negatives mined --set loss.refresh_every=1 -b scan", 2, "no embeddings"),
    (TINY, "train -m contrastive --set loss.prior=0.1 -b vsepp", 2, "changes nothing"),
    (TINY, "train -m aoq --negatives-from nobody.vsepp", 2, "unknown method 'nobody'"),
    (TINY, "train -m contrastive --set loss.temperature=own -b vsepp", 2, "random weights"),
    (TINY, "train {refreshed} --set train.batch_by=tokens", 2, "batches of tokens"),
    (TINY, "train {refreshed} --set mine_negatives.rescore_with=bfan", 2, "leave rescore_with out"),
    (TINY, "train -b dual-encoder --vision /nowhere/vit", 3, "/nowhere/vit is not a folder"),
    (TINY, "train --vision random --text random --features precomp", 2, "reads pixels"),
    (TINY, "train --vision random --text random --set train.model.width=17", 2, "width = 17"),
    # Fine-tuning
    (TINY, "train -m contrastive -b vsepp --set train.adapter=lora", 2, "backbone 'vsepp' has none"),
    (TINY, "train -m contrastive -b vsepp --set train.freeze=vision", 2, "encoders of layers"),
    (TINY, "train -m contrastive -b vsepp --set train.layer_decay=0.5", 2, "encoders of layers"),
    (TINY, "train -m contrastive -b vsepp --set train.average=wise-ft:0.5", 2, "a model that works already"),
    (TINY, "train -m contrastive -b vsepp --set train.average=ema", 2, "ema:DECAY"),
    (TINY, "train -m contrastive -b vsepp --set train.schedule=plateau", 2, "needs patience"),
    (TINY, "train -m contrastive -b vsepp --set train.average=ema:0.9 {plateau}", 2, "keeps others"),
    (TINY, "train -m zero-shot --vision {clip} --set train.patience=2", 2, "patience = 2 changes nothing"),
    (TINY, "train {random} --set train.adapter=lora", 2, "vision encoder, which are random"),
    (TINY, "train {random} --set train.freeze=text", 2, "text encoder, which are random"),
    (TINY, "train {random} --set train.average=wise-ft:0.5", 2, "were not trained together"),
    (TINY, "train {tuned} --set train.model.embed_dim=8 --set train.average=wise-ft:0.5", 2, "embed_dim = 8"),
    (TINY, "train {tuned} --set train.lora_rank=4", 2, "lora_rank = 4 changes nothing"),
    (TINY, "train {tuned} --set train.adapter=lora --set 'train.lora_targets=[\"q\"]'", 2, "lora_targets names q"),
    (TINY, "train {tuned} --set train.loss.largest_scale=10", 2, "loss.largest_scale=15"),
    (TINY, "train {regions} --set train.freeze=vision", 2, "no pretrained encoder"),
    (TINY, "train {regions} --set train.freeze=text --set train.adapter=lora", 2, "no encoder for adapter = lora"),
    # Ensembles
    (TINY, "evaluate -b vsrn --ensemble-with vsnr.s1", 2, "did you mean 'vsrn'"),
    (TINY, "evaluate -b vsrn --ensemble-with aqo.vsrn", 2, "did you mean 'aoq'"),
    (TINY, "evaluate -b vsrn --ensemble-with zzz", 2, ", bfan, "),
    (TINY, "evaluate -b vsrn --ensemble-with vsrn", 2, "'vsrn' is the evaluated model itself"),
    (TINY, "evaluate -b vsrn --ensemble-with triplet.vsrn.s0", 2, "'triplet.vsrn.s0' is the evaluated model itself"),
    (TINY, "evaluate -b vsrn --ensemble-with vsrn.s1 --ensemble-with triplet.vsrn.s1", 2, "a second time"),
    (TINY, "evaluate -b vsrn --ensemble-with a.b.c", 2, "[method.]backbone[.sN]"),
    (TINY, "evaluate -b vsrn --ensemble-with aoq.vsrn.s-1", 2, "is not of the form"),
    (TINY, "evaluate -b vsrn --ensemble-with aoq.", 2, "is not of the form"),
    (TINY, "evaluate -b vsrn {seven}", 2, "average fewer models"),
    (TINY, "evaluate -m triplet --rerank 5", 2, "--rerank 5"),
    (TINY, "evaluate -m tags --language-model {empty}", 2, "--method tags-dc"),
    # Sentences that a model is to tell from captions
    (TINY, "evaluate -d scenes --discriminate phrase", 2, "did you mean 'phrases'?"),
    (TINY, "evaluate -d scenes --discriminate gpt", 2, "phrases, vse-c, words"),
    (TINY, "evaluate -d scenes --discriminate phrases.tag", 2, "did you mean 'tags'?"),
    (TINY, "evaluate -d scenes --discriminate phrases.tags.x.s1", 2, "NAME[.METHOD][.sN]"),
    (TINY, "evaluate -d scenes --discriminate vse-c.tags", 2, "'vse-c.tags' names no model"),
    (
        TINY,
        "evaluate -d scenes --discriminate words --discriminate words.s0",
        2,
        "'words.s0' names words",
    ),
    (TINY, "evaluate -d scenes --discriminate words --ensemble-with vsepp", 2, "leave --ensemble-with out"),
    (TINY, "evaluate -d scenes --discriminate words --set synthesize.split=val", 2, "split = 'test'"),
    (TINY, "evaluate -d scenes --discriminate words --set words.seed=1", 2, "seed = 0"),
    # Benchmarks
    (TINY, "evaluate -b vsepp --benchmark sugarcrep=x", 2, "did you mean 'sugarcrepe'?"),
    (TINY, "evaluate -b vsepp --benchmark sugarcrepe", 2, "give NAME=FOLDER"),
    (TINY, "evaluate -b vsepp --benchmark scenes=x", 2, "scenes is made and stands alone"),
    (TINY, "evaluate -b vsepp --benchmark local=nowhere", 3, "nowhere is no folder"),
    (TINY, "evaluate -b vsepp --benchmark scenes --benchmark scenes", 2, "names scenes a second time"),
    (TINY, "evaluate -b vsepp --benchmark scenes", 2, "the embedded dataset"),
    (TINY, "evaluate -b vsepp --benchmark local={own} --ensemble-with vsepp.s1", 2, "leave --ensemble-with out"),
    (TINY, "evaluate -b vsepp --benchmark local={own}", 2, "imported (precomp)"),
    (TINY, "evaluate -b vsepp --benchmark aro={own}", 3, "visual_genome_relation.json"),
    (TINY, "evaluate -b vsepp -d scenes --benchmark local={own}", 2, "drawings and no photographs"),
    ("clip_chain", "evaluate -m zero-shot {pretrained} --benchmark local={broken}", 4, "1 of 1 images"),
    (TINY, "mine-negatives {vsepp} --decisions none.parquet", 3, "none.parquet"),
    (TINY, "evaluate -b vsepp --decisions {empty_json}", 4, "empty.json"),
    # Embeddings of any model
    (TINY, "evaluate --embeddings {rows}", 2, "holds one side"),
    (TINY, "evaluate --embeddings {empty}", 2, "images.npy"),
    (TINY, "evaluate --embeddings {rows} {rows} --owners none.npy", 3, "none.npy does not exist"),
    (TINY, "evaluate --embeddings {rows} {rows} --owners {rows}", 4, "cannot be read as ids"),
    (TINY, "evaluate --embeddings {rows} {rows} --name A.b", 2, "lower-case letters"),
    (TINY, "evaluate --embeddings {rows} {rows} --name {long}", 2, "100 at most"),
    (TINY, "evaluate --embeddings {rows} {rows} --measure cos", 2, "'inner-product'"),
    (TINY, "evaluate --embeddings {rows} {rows} --backbone vsrn", 2, "--backbone and --embeddings"),
    (TINY, "evaluate --owners {rows}", 2, "belongs to --embeddings"),
    (TINY, "evaluate some.npy", 2, "belongs to --embeddings"),
    (TINY, "evaluate --method given", 3, "no embeddings 'given' of split 'test'"),
    (TINY, "evaluate --method given --benchmark scenes", 2, "is not here"),
    (TINY, "evaluate --method given --seed 1 --ensemble-with given.s1", 2, "no seed"),
    # Advice on a second training
    (TINY, "advise --make -b bfan", 2, "scores pair by pair"),
    (TINY, "advise --make -b vsepp -m fne --set train.loss.warm_epochs=0", 2, "the negatives of its batches"),
    (TINY, "advise --make -b vsepp --set train.model.measure=order", 2, "ask for cosine"),
    # Folders for others
    (PAIRS, "export -b scan {tiny} --to {out} --embeddings npy", 2, "--embeddings npy"),
    (PAIRS, "export -b scan {tiny} --to {out} --index", 2, "vsepp"),
    (TINY, "export -b vsepp {tiny} --set train.model.measure=order --to {out} --index", 2, "order violation"),
    (TINY, "export -b vsepp {tiny} --set 'ensemble_with=[\"vsepp.s1\"]' --to {out}", 2, "several models"),
    (TINY, "export -b vsepp {tiny} --split val --to {out}", 2, "itrpipe evaluate --dataset tiny"),
    (TINY, "export -m aqo --to {out} --license 'my own: yes'", 2, "apache-2.0"),
    (TINY, "export -b vsepp {tiny} --to {empty_json}/out", 3, "empty.json"),
    (TINY, "export -b vsepp {tiny} --to {data}/tiny/out", 2, "lies in the data folder"),
    (TINY, "export -b vsepp {tiny} --to {own}", 2, "not empty"),
    (TINY, "export -b vsepp {tiny} --to {own} --force", 2, "was not made by itrpipe export"),
    (TINY, "export -b vsepp {tiny} --to {own}/0.png", 2, "is a file"),
    (TINY, "export -b vsepp {tiny} --to {out}\udcff", 2, "out\\udcff"),
    (TINY, "export-negatives {vsepp} --to {out} --format sentence-transformer", 2, "--format"),
    (TINY, "export-negatives {vsepp} --to {out} --direction t2t", 2, "'t2t'"),
    (TINY, "export-negatives {vsepp} --to {out} --synthetic phrase", 2, "'phrases'"),
    (TINY, "export-negatives {vsepp} --to {out} --format negclip --direction t2i", 2, "negclip"),
    (TINY, "export-negatives {vsepp} --to {out} --format jsonl --with-scores", 2, "jsonl"),
    (TINY, "export-negatives {vsepp} --to {out} --format webdataset --image-root x", 2, "webdataset"),
    (TINY, "export-negatives {vsepp} --to {out} --format negclip --shard-rows 9", 2, "negclip"),
    (TINY, "export-negatives {vsepp} --to {out}", 2, "--set num_images=8"),
    (TINY, "export-negatives {vsepp} --to {out} --direction i2t", 2, "num_texts = 5"),
    (TINY, "export-negatives {vsepp} --to /", 2, "--to / exists"),
    (TINY, "evaluate -m aoq -b vsepp --device cuda", 2, "no CUDA device"),
    ("defined", "report", 3, "itrpipe evaluate"),
    # Single queries
    (TINY, "search -b vsepp {tiny}", 2, "neither"),
    (TINY, "search -b vsepp {tiny} 'a dog' --image 1016", 2, "both"),
    (TINY, "search -b vsepp {tiny} --image 1017.jpeg", 3, "1017.jpeg"),
    (TINY, "search -b vsepp {tiny} --image {long}{long}", 3, "aaa"),
    (TINY, "search -b vsepp {tiny} 'a dog \udcff'", 2, "'a dog \\udcff'"),
    (TINY, "search -b vsepp {tiny} 'a dog' --split dev", 2, "dev"),
    (TINY, "search -b vsepp {tiny} 'a dog' --seed 7 --no-deps", 2, "run `itrpipe train"),
    (TINY, "search -b vsepp {tiny} 'a dog' --html no/folder/page.html", 3, "no/folder"),
    (TINY, "search -b vsepp {tiny} 'a dog' --html {own}/0.png", 2, "0.png"),
    (TINY, "search -b vsepp {tiny} --image {own}/0.png", 2, "imported (precomp)"),
    (TINY, "search -b vsepp {tiny} 'zzz qqq zzz'", 2, "(zzz, qqq)"),
    (TAGS, "search {tags_dc} -m tags-dc '{many}'", 2, "tokens"),
    ("data_root", "search --photos {own} --model {clip} 'a dog' --image 0.png", 2, "both was given"),
    ("data_root", "search --photos {own} --model {clip} --image nowhere.png", 3, "--image nowhere.png"),
    ("data_root", "search --photos {own} --model {clip} 'a dog' --html no/page.html", 3, "no/page.html"),
    ("data_root", "search --photos {own} --model {clip} 'a dog' --split val", 2, "--split"),
    ("data_root", "search --photos {own} --model {clip} 'a dog' --seed 1 --dry-run", 2, "--seed"),
    # What a model says of a sentence
    (TAGS, "explain --make -m itm {word}", 2, "itm.uniter"),
    (TAGS, "explain --make -m triplet -b vsepp {word}", 2, "--method tags-dc"),
    (TAGS, "explain --make -m tags-dc -b vsepp {word}", 2, "backbone 'vsepp'"),
    (TAGS, "explain --make {tags_dc} --image 1017.jpeg --caption 'a dog'", 3, "1017.jpeg"),
    (TAGS, "explain --make {tags_dc} --image test-000000.jpg --caption '{many}'", 2, "tokens"),
    (TAGS, "explain --no-deps {tags_dc} --seed 7 {word}", 2, "itrpipe train --dataset scenes --method tags-dc"),
    (TAGS, "synthesize {uniter} --language-model {bert}", 2, "'bert'"),
    (TAGS, "synthesize --by vse-c --set min_count=1000 --set parse.workers=1", 2, "lower min_count"),
]


@pytest.fixture(scope="module")
def places(saved_encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What commands name: files that do not fit, and options that are long."""
    folder = tmp_path_factory.mktemp("refusals")
    record = {"file": "0.png", "caption": "a dog", "negative": ["a cat"]}
    for name in ("empty", "own", "broken"):
        (folder / name).mkdir()
        if name != "empty":
            (folder / name / "benchmark.jsonl").write_text(json.dumps(record) + "\n")
    Image.new("RGB", (30, 20)).save(folder / "own" / "0.png")
    (folder / "broken" / "0.png").write_bytes(b"no picture")
    np.save(folder / "rows.npy", np.eye(3))
    (folder / "empty.json").write_text("{}")
    lists = "--set mine_negatives.num_texts=5 --set mine_negatives.num_images=3"
    drawn = "--set top_texts=5 --set top_images=3"
    small = "--set train.epochs=1 --set train.batch_size=16 --set train.min_word_count=1"
    narrow = f"-b vsepp {small} --set train.model.embed_dim=8 --set train.model.word_dim=8"
    regions = "--set train.model.images=regions --set train.model.embed_dim=8 --features precomp"
    clip, bert = saved_encoders / "clip", saved_encoders / "bert"
    return {
        "empty": folder / "empty",
        "empty_json": folder / "empty.json",
        "own": folder / "own",
        "broken": folder / "broken",
        "pretrained": " ".join(sets(*CLIP, *encoders_of(saved_encoders, "clip"))),
        "rows": folder / "rows.npy",
        "out": tmp_path_factory.mktemp("out") / "out",
        "long": "a" * 200,
        "many": "a dog " * 60,
        "word": "--image test-000000.jpg --caption 'a dog'",
        "tiny": " ".join(sets(*TINY_VSEPP[:-1])),
        "tags_dc": " ".join(sets(*UNITER, *tags_loss("tags"), *tags_loss("tags-dc"))),
        "uniter": " ".join(sets(*UNITER)),
        "clip": clip,
        "bert": bert,
        "vsepp": f"{narrow} --set num_texts=5 --set num_images=3",
        "aoq": f"{narrow} {lists} {drawn}",
        "itm": "-m itm --set precomp.grid=[2,2] --set itm.loss.hard_negatives=3",
        "tokenizer": "--set train.model.tokenizer=bert-base-cased",
        "tags": "-m tags --set precomp.grid=[2,2] --set tags.loss.hard_negatives=3",
        "refreshed": f"-m contrastive --negatives mined {narrow} {lists} {drawn} --set loss.refresh_every=2",
        "plateau": "--set train.schedule=plateau --set train.patience=1",
        "random": "-m contrastive --vision random --text random",
        "tuned": f"-m clip-finetune --vision {clip} --text {clip}",
        "regions": f"-m contrastive -b dual-encoder --text {bert} {regions}",
        "seven": " ".join(f"--ensemble-with triplet-long.vsepp.s{10**9 + number}" for number in range(7)),
    }


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, pytest.FixtureRequest], Path]:
    """A copy of the data folder of an arrangement, the same for all of its rows."""
    folder = tmp_path_factory.mktemp("arrangements")

    def copy_of(arrangement: str, request: pytest.FixtureRequest) -> Path:
        if not (folder / arrangement).exists():
            found: Path = request.getfixturevalue(arrangement)
            data = found / "data" if (found / "data").exists() else found
            return copied(data, folder / arrangement) if data.exists() else folder / arrangement
        return folder / arrangement

    return copy_of


def artifacts(root: Path) -> set[Path]:
    """All but features and scene graphs, which a model may need to be refused."""
    return {path.parent for path in root.glob("*/*/*/manifest.json") if not {"extract", "parse"} & {*path.parts}}


@pytest.mark.parametrize(
    ("arrangement", "command", "code", "value"), ROWS, ids=[command[:80] for _, command, _, _ in ROWS]
)
def test_what_cannot_work_is_told_in_one_line(
    arrangement: str,
    command: str,
    code: int,
    value: str,
    data_of: Callable[[str, pytest.FixtureRequest], Path],
    places: dict[str, object],
    request: pytest.FixtureRequest,
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "--device cuda" in command and torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    root = data_of(arrangement, request)
    empty = {*tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "ITRPIPE_DATASET", "scenes" if arrangement in ("ascl_chain", "scenes_chain", "tags_chain") else "tiny"
    )
    before = artifacts(root)
    refused(invoke(*shlex.split(command.format(data=root, **places)), "--data", root), code, value)
    assert artifacts(root) == before
    assert {*tmp_path.iterdir()} == empty
