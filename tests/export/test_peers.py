"""Comparison of imported and exported models with the libraries that they come from.

The tests need torch, transformers, tokenizers and ctranslate2, and are skipped where one is not installed.
"""

import functools
import json
import pathlib
import runpy

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.commands import run_command
from tests.support.imported import Imported
from tests.support.pairs import TEXTS
from tests.support.tokenizers import make_json, train_model
from tfm.data.config import DocumentsConfig, begin_with
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.decoding.generate import generate_ids
from tfm.decoding.translate import translate_ids
from tfm.export.foreign import write_foreign
from tfm.huggingface.fields import Fields
from tfm.huggingface.lookup import find_families
from tfm.huggingface.vocabulary import M2M_100_LANGUAGES, Languages
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.systems.bert.masked_pairs import join_texts
from tfm.tasks import language_modeling
from tfm.testing.models import quick_jit
from tfm.workdir import runs

torch = pytest.importorskip("torch", reason="the package torch is not installed")
hf = pytest.importorskip("transformers", reason="the package transformers is not installed")
pytestmark = pytest.mark.long

MAKE = pathlib.Path(__file__).parent / "huggingface" / "make.py"
TRANSLATION = ("marian-swish", "marian-separate", "bart", "mbart", "m2m_100", "t5", "t5-v1_1")
INPUTS, STEPS, SHORTEST = 200, 7, 4  # SHORTEST counts the end of a sentence
GREEDY = {"do_sample": False, "num_beams": 1}
NOISE = 0.5  # added to the attention of a run to its sources
WORDS = ["red", "small", "dog", "bird", "runs", "sleeps", "the", "unknown"]
SENTENCES = [" ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 5)) for i in range(INPUTS)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Returns a folder with a new random model of each family, written by the installed transformers."""
    folder = tmp_path_factory.mktemp("models")
    runpy.run_path(str(MAKE))["main"](str(folder))
    return folder


def load(folder):
    """Returns the model of a folder in transformers, whose class config.json names."""
    (architecture,) = hf.AutoConfig.from_pretrained(folder).architectures
    return getattr(hf, architecture).from_pretrained(folder).eval()


def options_of(imported):
    """Returns the options of a greedy search that cannot output what tfm excludes."""
    order, end = imported.order, imported.values["eos_token_id"]
    excluded = {*order.ids[:2].tolist(), *order.ids[order.excluded].tolist()} - {end, -1}
    limits = {"min_new_tokens": SHORTEST - 1, "max_new_tokens": STEPS + 1}
    return GREEDY | limits | {"suppress_tokens": sorted(excluded) or None}


def until(ids, end):
    """Returns the first `STEPS` ids, at most to the end of the sentence."""
    found = list(ids)[:STEPS]
    return found[: found.index(end) + 1] if end in found else found


def random_rows(imported, counts):
    """Returns random rows of ids of transformers that are neither special nor excluded."""
    order = imported.order
    special = {int(order.ids[i]) for i in range(3)}
    size = imported.values["vocab_size"]
    words = [int(i) for i in order.ids[~order.excluded] if 0 <= i < size and int(i) not in special]
    rng = np.random.default_rng(0)
    return [rng.choice(words, count).tolist() for count in counts]


@pytest.mark.parametrize("name", TRANSLATION)
def test_greedy_outputs_and_logits_of_translation_models_are_equal(folders, name):
    imported, theirs = Imported(folders / name), load(folders / name)
    end, pad = (imported.values[f"{key}_token_id"] for key in ("eos", "pad"))
    rows = [[*row, end] for row in random_rows(imported, [2 + i % 4 for i in range(INPUTS)])]
    config = DecodingConfig(beam_size=1, length_penalty=0.0, min_length=SHORTEST, max_extra_tokens=STEPS)
    sources = [imported.new_ids(row).tolist() for row in rows]
    found = translate_ids(imported.model, imported.variables["params"], sources, config)
    outputs = [until(imported.order.ids[best.ids].tolist(), end) for (best,) in found]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    generated = theirs.generate(tokens, attention_mask=mask, **options_of(imported))
    assert outputs == [until(row[1:], end) for row in generated.tolist()]

    targets = generated[:, :STEPS]
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=mask, decoder_input_ids=targets).logits.numpy()
    inputs = np.where(mask, imported.new_ids(tokens.numpy()), 0)
    shifted = imported.new_ids(targets.numpy())
    shifted[:, 0] = 1
    logits = quick_jit(functools.partial(imported.model.apply, train=False))(
        imported.variables, inputs, shifted
    )
    order = imported.order
    kept = ~order.excluded & (order.ids < expected.shape[-1])
    # Padding after the end has another id in tfm, so that only the positions before it are compared.
    real = np.cumsum(targets.numpy()[:, 1:] == end, 1) == 0
    real = np.concatenate([np.ones((INPUTS, 1), bool), real], 1)
    np.testing.assert_allclose(
        np.asarray(logits)[..., kept][real], expected[..., order.ids[kept]][real], atol=1e-4
    )


def test_greedy_continuations_of_gpt2_are_equal(folders):
    imported, theirs = Imported(folders / "gpt2"), load(folders / "gpt2")
    end = imported.values["eos_token_id"]
    rows = random_rows(imported, [1 + i % 4 for i in range(INPUTS)])
    config = GenerationConfig(samples=0, beam_size=1, max_tokens=STEPS + 1)
    prefixes = [imported.new_ids(row).tolist() for row in rows]
    found = generate_ids(imported.model, imported.variables["params"], prefixes, config)
    for row, (best,) in zip(rows, found, strict=True):
        tokens = torch.tensor([[end, *row]])
        options = options_of(imported) | {"min_new_tokens": 0, "pad_token_id": end, "suppress_tokens": None}
        generated = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        expected = until(generated[0, len(row) + 1 :].tolist(), end)
        assert until(imported.order.ids[best.ids].tolist(), end) == expected


def export(workdir, folder, name):
    result = run_command("export", f"--workdir={workdir}", f"--output={folder}", f"--format={name}")
    assert result.code == 0, result.error


def test_marian_gives_the_same_probabilities_in_three_runtimes(tiny_run, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the package ctranslate2 is not installed")
    first, imported, served, marian = (tmp_path / name for name in ("first", "imported", "served", "marian"))
    export(tiny_run, first, "huggingface")
    arrays, rng = load_file(first / "model.safetensors"), np.random.default_rng(0)
    for name, x in arrays.items():  # the run is so short that sources have little effect
        if ".encoder_attn." in name and x.ndim == 2:
            x += rng.normal(0, NOISE, x.shape).astype(np.float32)
    save_file(arrays, first / "model.safetensors", {"format": "pt"})
    assert run_command("import", f"--from={first}", f"--output={imported}").code == 0
    export(imported, served, "ctranslate2")
    export(imported, marian, "huggingface")

    run, tokenizer, theirs = (
        runs.load(str(imported)),
        hf.MarianTokenizer.from_pretrained(marian),
        load(marian),
    )
    sources = [[*ids, 2] for ids in run.task.tokenizer.source.encode(SENTENCES)]
    assert tokenizer(SENTENCES).input_ids == sources
    targets = [[*ids, 2] for ids in run.task.tokenizer.encode(SENTENCES[::-1])]
    expected = run.task.score(run.params, SENTENCES, SENTENCES[::-1])

    to_pieces = tokenizer.convert_ids_to_tokens
    results = ctranslate2.Translator(str(served), intra_threads=1).score_batch(
        [to_pieces(ids[:-1]) for ids in sources], [to_pieces(ids[:-1]) for ids in targets]
    )
    for i, (ids, ours) in enumerate(zip(targets, expected, strict=True)):
        inputs = {
            "input_ids": torch.tensor([sources[i]]),
            "decoder_input_ids": torch.tensor([[1, *ids[:-1]]]),
        }
        with torch.no_grad():
            logits = theirs(**inputs).logits[0]
        logits[:, :2] = -torch.inf  # no text has padding or BOS
        found = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
        np.testing.assert_allclose(found.numpy(), ours, atol=1e-4)
        np.testing.assert_allclose(results[i].log_probs, ours, atol=1e-4)


@pytest.mark.parametrize("special", [("<unk>", "<s>", "</s>", "<pad>"), ("<|endoftext|>",)])
def test_exported_gpt2_reads_the_tokens_of_its_run(special, tmp_path):
    """The special tokens change places in the run, so the exported file needs the order of the run."""
    (tmp_path / "train.txt").write_text("\n\n".join(TEXTS * 45))
    (tmp_path / "tokenizer.json").write_bytes(make_json("bytes", tokens=special))
    config = language_modeling.Config(
        model=DecoderLMConfig(d_model=8, d_ff=8, heads=2, layers=1, max_positions=16),
        data=DocumentsConfig(
            directory=str(tmp_path),
            tokenizer=str(tmp_path / "tokenizer.json"),
            train="train.txt",
            validation="train.txt",
            test="train.txt",
            row_length=16,
        ),
        stride=16,
    )
    (tmp_path / "run").mkdir()
    task = language_modeling.create(config, str(tmp_path / "run"))
    variables = {"params": task.init(jax.random.key(0))["params"]}
    write_foreign(
        runs.Run(task, variables, [0]),
        str(tmp_path / "out"),
        workdir=str(tmp_path / "run"),
        format="huggingface",
        quantization="float32",
    )
    tokenizer, theirs = (
        hf.AutoTokenizer.from_pretrained(tmp_path / "out"),
        load(tmp_path / "out"),
    )
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.convert_ids_to_tokens(range(3)) == task.tokenizer.pieces(range(3))
    for text in [*TEXTS[:5], 'Stop! "Now".']:
        (ids,) = task.tokenizer.encode([text])
        assert tokenizer.encode(text) == ids
        with torch.no_grad():
            found = theirs(torch.tensor([[1, *ids[:15]]])).logits
        expected = task.model.apply(variables, np.array([[1, *ids[:15]]]), train=False)
        np.testing.assert_allclose(found.numpy()[..., 2:], np.asarray(expected)[..., 2:], atol=1e-4)


JSON_TOKENIZERS = {  # {class of transformers: file of its pieces, options of its SentencePiece model}
    "T5Tokenizer": ("spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    "NllbTokenizer": ("sentencepiece.bpe.model", {"pad_id": -1, "model_type": "bpe"}),
    "MBart50Tokenizer": ("sentencepiece.bpe.model", {"pad_id": -1}),
}


@pytest.mark.parametrize("name", JSON_TOKENIZERS)
def test_tokenizer_that_transformers_saves_has_the_same_tokens(name, tmp_path):
    """transformers 5 writes a tokenizer.json in place of the SentencePiece model that it reads."""
    file, options = JSON_TOKENIZERS[name]
    (tmp_path / file).write_bytes(train_model(**options))
    model_type = {"T5Tokenizer": "t5", "NllbTokenizer": "m2m_100", "MBart50Tokenizer": "mbart"}[name]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    languages = Languages("en_XX", "de_DE")
    tags = {} if name == "T5Tokenizer" else {"src_lang": "en_XX", "tgt_lang": "de_DE"}
    if name == "NllbTokenizer":
        tags["additional_special_tokens"] = ["de_DE", "en_XX"]
    theirs = getattr(hf, name).from_pretrained(tmp_path, **tags)
    theirs.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / file).exists()
    special = {"pad_token_id": theirs.pad_token_id, "eos_token_id": theirs.eos_token_id}
    start = {"decoder_start_token_id": theirs.pad_token_id if name == "T5Tokenizer" else theirs.eos_token_id}
    fields = Fields({"vocab_size": len(theirs), **special, **start}, "config.json")
    vocabulary = find_families()[model_type].read_vocabulary(str(tmp_path / "saved"), fields, languages)
    tokenizer = TokenizerJson(vocabulary.files["vocabulary.model"])
    for text in [*TEXTS, *SENTENCES[:5], "Žluť 猫 €", "<extra_id_0> dog<extra_id_1>.", "two  spaces"]:
        (ids,) = tokenizer.encode([begin_with(vocabulary.source_prefix, text)])
        assert [*vocabulary.order.ids[ids].tolist(), theirs.eos_token_id] == theirs(text).input_ids


def test_languages_of_m2m_100_are_those_of_transformers():
    from transformers.models.m2m_100 import tokenization_m2m_100

    ours = {name: languages.split() for name, languages in M2M_100_LANGUAGES.items()}
    assert ours == tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES


LETTERS = "abcdefghijklmnopqrstuvwxyz"
BERT_SPECIAL = ["[unused0]", "[UNK]", "[SEP]", "[PAD]", "[MASK]", "[CLS]"]
BERT_VOCABULARY = [*BERT_SPECIAL, *LETTERS, *map("##".__add__, LETTERS), ".", ",", "dog", "the"]


@pytest.mark.parametrize("name", ["BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification"])
def test_bert_has_the_same_tokens_and_logits_after_import_and_export(name, tmp_path):
    folder, imported, exported = (tmp_path / part for part in ("theirs", "imported", "exported"))
    vocabulary = dict(zip(BERT_VOCABULARY, range(len(BERT_VOCABULARY)), strict=False))
    config = hf.BertConfig(
        vocab_size=len(BERT_VOCABULARY),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=64,
        pad_token_id=BERT_VOCABULARY.index("[PAD]"),
    )
    theirs = getattr(hf, name)(config).eval()
    with torch.no_grad():
        for x in theirs.parameters():
            x.add_(NOISE * torch.randn_like(x))
    theirs.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(BERT_VOCABULARY))
    result = run_command("import", f"--from={folder}", f"--output={imported}")
    assert result.code == 0, result.error
    export(imported, exported, "huggingface")
    tokenizer, run = hf.BertTokenizer(vocab=vocabulary), runs.load(str(imported))
    again, tokenizer_again = load(exported), hf.AutoTokenizer.from_pretrained(exported)
    apply = quick_jit(functools.partial(run.task.model.apply, train=False))
    pieces = tokenizer_again.convert_ids_to_tokens
    for i, text in enumerate([*SENTENCES, *TEXTS, "Žluť 猫", "[MASK]ed", "DOGS!"]):
        pair = [text[:30], SENTENCES[-1 - i % INPUTS][: 30 * (i % 2)]]
        pair = pair if pair[1] else pair[:1]
        before, after = tokenizer(*pair, return_tensors="pt"), tokenizer_again(*pair, return_tensors="pt")
        tokens, types = join_texts(*run.task.tokenizer.encode(pair))
        if text != "[MASK]ed":
            assert pieces(tokens.tolist()) == tokenizer.convert_ids_to_tokens(before.input_ids[0])
        assert pieces(after.input_ids[0]) == tokenizer.convert_ids_to_tokens(before.input_ids[0])
        with torch.no_grad():
            expected, found = theirs(**before), again(**after)
        tokens, types = after.input_ids.numpy(), after.token_type_ids.numpy()
        width = tokens.shape[1]
        ours = apply(run.variables, *(np.pad(x, ((0, 0), (0, 64 - width))) for x in (tokens, types)))
        if name == "BertForSequenceClassification":
            np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)
            np.testing.assert_allclose(ours, expected.logits, atol=1e-4)
            continue
        if name == "BertForPreTraining":
            for logits in (found.seq_relationship_logits, np.asarray(ours[1])[:, ::-1]):
                np.testing.assert_allclose(logits, expected.seq_relationship_logits, atol=1e-4)
        rows = [BERT_VOCABULARY.index(piece) for piece in pieces(range(len(vocabulary)))]
        logits = expected["logits" if "logits" in expected else "prediction_logits"][..., rows]
        for values in (found.prediction_logits, ours[0][:, :width]):
            np.testing.assert_allclose(values, logits, atol=1e-4)


def test_imported_gpt2_has_the_tokens_of_its_tokenizer_and_is_exported_exactly(tmp_path):
    folder, imported, exported = (tmp_path / name for name in ("gpt2", "imported", "exported"))
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(make_json("bytes", tokens=["<|endoftext|>"]))
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    config = hf.GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=32,
        n_embd=8,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = hf.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(folder)
    result = run_command("import", f"--from={folder}", f"--output={imported}")
    assert result.code == 0, result.error
    export(imported, exported, "huggingface")
    again, ids = load(exported), hf.PreTrainedTokenizerFast.from_pretrained(exported)
    ours = runs.load(str(imported)).task.tokenizer
    texts = [*TEXTS, *SENTENCES, "Žluťoučký 猫 5 €", "  two  spaces ", "don't", "x"]
    for text in texts:
        before = [0, *tokenizer.encode(text, add_special_tokens=False)][:32]
        after = [1, *ids.encode(text, add_special_tokens=False)][:32]
        assert after[1:] == ours.encode([text])[0][:31]
        assert ids.decode(after[1:]) == tokenizer.decode(before[1:])
        with torch.no_grad():
            expected = theirs(torch.tensor([before])).logits[0].numpy()
            found = again(torch.tensor([after])).logits[0].numpy()
        rows = ids.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(range(1, len(tokenizer))))
        np.testing.assert_allclose(found[:, rows], expected[:, 1:], atol=1e-4)


def test_imported_vit_is_exported_exactly(folders, tmp_path):
    imported, exported = tmp_path / "imported", tmp_path / "exported"
    assert run_command("import", f"--from={folders / 'vit'}", f"--output={imported}").code == 0
    export(imported, exported, "huggingface")
    before, after = load(folders / "vit").state_dict(), load(exported).state_dict()
    assert before.keys() == after.keys()
    for name, x in before.items():
        np.testing.assert_allclose(after[name].numpy(), x.numpy(), rtol=1e-6, atol=1e-7)
    pixels = torch.randn(INPUTS, 3, 8, 8)
    with torch.no_grad():
        expected = load(folders / "vit")(pixel_values=pixels).logits.log_softmax(-1).numpy()
    run = runs.load(str(imported))
    found = run.task.classify(run.variables, pixels.numpy().transpose(0, 2, 3, 1))
    np.testing.assert_allclose(found, expected, atol=1e-4)
