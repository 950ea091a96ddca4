"""Tests of the import of fairseq checkpoints. The reference is the Transformer of PyTorch."""

import argparse
import functools

import numpy as np
import pytest

from tests.support.commands import run_command
from tests.support.pairs import TEXTS
from tests.support.tokenizers import train_model
from tfm.testing.models import quick_jit
from tfm.workdir import runs

torch = pytest.importorskip("torch", reason="the package torch is not installed")
pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
pytestmark = pytest.mark.long

D, HIDDEN, HEADS, LAYERS = 8, 12, 2, 2
SOURCE_WORDS, TARGET_WORDS = [f"s@@{i}" for i in range(9)], [f"t{i}" for i in range(12)]
OPTIONS = {
    **{f"{side}_embed_dim": D for side in ("encoder", "decoder")},
    **{f"{side}_ffn_embed_dim": HIDDEN for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")},
    **{f"{side}_layers": LAYERS for side in ("encoder", "decoder")},
    "source_lang": "en",
    "target_lang": "de",
}
CASES = {  # {name: (options, source words, target words)}
    "joined dictionary": ({"share_all_embeddings": True}, TARGET_WORDS, TARGET_WORDS),
    "two tables": ({"share_decoder_input_output_embed": True}, SOURCE_WORDS, TARGET_WORDS),
    "three tables": ({}, TARGET_WORDS, SOURCE_WORDS),
    "pre-norm": (
        {"share_all_embeddings": True, "encoder_normalize_before": True, "decoder_normalize_before": True},
        TARGET_WORDS,
        TARGET_WORDS,
    ),
    "gelu, no scale": (
        {"share_all_embeddings": True, "activation_fn": "gelu", "no_scale_embedding": True},
        TARGET_WORDS,
        TARGET_WORDS,
    ),
}


def make_state(options, sources, targets):
    """Returns random arrays with the names of fairseq."""
    torch.manual_seed(0)
    state = {}

    def add(name, *shape):
        state[name] = 0.3 * torch.randn(*shape) + (name.endswith("norm.weight"))

    def linear(name, out, into):
        add(f"{name}.weight", out, into)
        add(f"{name}.bias", out)

    add("encoder.embed_tokens.weight", sources, D)
    add("decoder.embed_tokens.weight", targets, D)
    if options.get("share_all_embeddings"):
        state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    add("decoder.output_projection.weight", targets, D)
    if options.get("share_all_embeddings") or options.get("share_decoder_input_output_embed"):
        state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"]
    for side, attentions in {"encoder": ["self_attn"], "decoder": ["self_attn", "encoder_attn"]}.items():
        state[f"{side}.version"] = torch.tensor([3.0])
        state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        norms = [f"{side}.layer_norm"] if options.get("encoder_normalize_before") else []
        for i in range(LAYERS):
            layer = f"{side}.layers.{i}"
            for name in attentions:
                for part in ("q", "k", "v", "out"):
                    linear(f"{layer}.{name}.{part}_proj", D, D)
                norms.append(f"{layer}.{name}_layer_norm")
            linear(f"{layer}.fc1", HIDDEN, D)
            linear(f"{layer}.fc2", D, HIDDEN)
            norms.append(f"{layer}.final_layer_norm")
        for name in norms:
            add(f"{name}.weight", D)
            add(f"{name}.bias", D)
    return state


def fuse(state):
    """Returns the arrays as old files have them: with queries, keys and values in one array."""
    old = {}
    for name, x in state.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            x = torch.cat([state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
            name = name.replace("q_proj.", "in_proj_")
        old[name] = x
    return old


def embed(state, side, tokens, options):
    """Returns the embeddings with positions that begin with 2: all sines, and then all cosines."""
    positions = torch.arange(2, 2 + tokens.shape[1])[:, None]
    angles = positions * 10_000.0 ** -(torch.arange(D // 2) / (D // 2 - 1))
    scale = 1.0 if options.get("no_scale_embedding") else D**0.5
    return scale * state[f"{side}.embed_tokens.weight"][tokens] + torch.cat([angles.sin(), angles.cos()], 1)


def run_torch(state, options, source, target):
    """Returns the logits of the layers of PyTorch."""
    arguments = {
        "d_model": D,
        "nhead": HEADS,
        "dim_feedforward": HIDDEN,
        "dropout": 0.0,
        "activation": options.get("activation_fn", "relu"),
        "batch_first": True,
        "norm_first": options.get("encoder_normalize_before", False),
    }
    names = {"fc1": "linear1", "fc2": "linear2", "encoder_attn": "multihead_attn"}
    norms = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}

    def layer(side, i):
        kind = torch.nn.TransformerEncoderLayer if side == "encoder" else torch.nn.TransformerDecoderLayer
        made, prefix = kind(**arguments).eval(), f"{side}.layers.{i}."
        arrays = {}
        for name, x in fuse(state).items():
            if name.startswith(prefix) and "layer_norm" not in name:
                module, _, rest = name.removeprefix(prefix).partition(".")
                arrays[f"{names.get(module, module)}.{rest}"] = x
        for j, norm in enumerate(norms[side], 1):
            for leaf in ("weight", "bias"):
                arrays[f"norm{j}.{leaf}"] = state[f"{prefix}{norm}_layer_norm.{leaf}"]
        made.load_state_dict(arrays)
        return made

    def last_norm(side, x):
        if not options.get("encoder_normalize_before"):
            return x
        parameters = (state[f"{side}.layer_norm.{leaf}"] for leaf in ("weight", "bias"))
        return torch.nn.functional.layer_norm(x, (D,), *parameters)

    padding = source == 1
    x, y = embed(state, "encoder", source, options), embed(state, "decoder", target, options)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1])
    with torch.no_grad():
        for i in range(LAYERS):
            x = layer("encoder", i)(x, src_key_padding_mask=padding)
        x = last_norm("encoder", x)
        for i in range(LAYERS):
            y = layer("decoder", i)(y, x, tgt_mask=causal, memory_key_padding_mask=padding)
        return (last_norm("decoder", y) @ state["decoder.output_projection.weight"].T).numpy()


def write_folder(folder, options, state, sources, targets):
    """Writes model.pt and the dictionaries."""
    for language, words in (("en", sources), ("de", targets)):
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words))
    torch.save({"args": argparse.Namespace(**OPTIONS | options), "model": state}, folder / "model.pt")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_old", [False, True])
def test_logits_of_an_imported_checkpoint_equal_those_of_pytorch(name, is_old, tmp_path):
    options, sources, targets = CASES[name]
    state = make_state(options, 4 + len(sources), 4 + len(targets))
    write_folder(tmp_path, options, fuse(state) if is_old else state, sources, targets)
    result = run_command("import", f"--from={tmp_path}", f"--output={tmp_path / 'out'}")
    assert result.code == 0, result.error
    run, rng = runs.load(str(tmp_path / "out")), np.random.default_rng(0)
    source_texts = [" ".join(rng.choice(sources, count)) for count in (7, 4, 5)]
    target_texts = [" ".join(rng.choice(targets, 6)) for _ in range(3)]
    tokenizer = run.task.tokenizer
    inputs, theirs = np.zeros((3, 8), int), np.full((3, 8), 1)
    for row, (text, ids) in enumerate(zip(source_texts, tokenizer.source.encode(source_texts), strict=True)):
        inputs[row, : len(ids) + 1] = [*ids, 2]
        theirs[row, : len(ids) + 1] = [*(4 + sources.index(word) for word in text.split()), 2]
    shifted = np.array([[1, *ids] for ids in tokenizer.encode(target_texts)])
    target = np.array([[2, *(4 + targets.index(word) for word in text.split())] for text in target_texts])
    expected = run_torch(state, options, torch.tensor(theirs), torch.tensor(target))
    apply = quick_jit(functools.partial(run.task.model.apply, train=False))
    logits = np.asarray(apply(run.variables, inputs, shifted))
    columns = [ids[0] for ids in tokenizer.encode(targets)]
    np.testing.assert_allclose(logits[..., columns], expected[..., 4:], atol=1e-4)
    np.testing.assert_allclose(logits[..., 2], expected[..., 2], atol=1e-4)
    assert tokenizer.decode(shifted[0]) == target_texts[0]


def test_sentencepiece_of_a_folder_reads_plain_text(tmp_path):
    content = train_model(model_type="unigram")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content)
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = [processor.id_to_piece(i) for i in range(4, len(processor))]
    options = {"share_all_embeddings": True}
    write_folder(tmp_path, options, make_state(options, 4 + len(pieces), 4 + len(pieces)), pieces, pieces)
    result = run_command("import", f"--from={tmp_path}", f"--output={tmp_path / 'out'}")
    assert result.code == 0, result.error
    tokenizer = runs.load(str(tmp_path / "out")).task.tokenizer
    for text in TEXTS[:5]:
        (ids,) = tokenizer.encode([text])
        assert tokenizer.pieces(ids) == processor.encode(text, out_type=str)


class Hostile:
    """A pickle that would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    ("options", "state", "named"),
    [
        ({"encoder_learned_pos": True}, {}, "encoder_learned_pos"),
        ({"decoder_embed_dim": 4}, {}, "decoder_embed_dim"),
        ({"source_lang": "../en"}, {}, r"\.\./en"),
        ({}, {"encoder.layers.0.fc1.bias": None}, "fc1.bias"),
        ({}, {"decoder.extra": torch.zeros(2)}, "extra"),
        ({"encoder_layers": 900}, {}, "encoder_layers is 900"),
    ],
)
def test_checkpoint_that_tfm_lacks_is_an_error(options, state, named, tmp_path):
    arrays = make_state({}, 4 + len(SOURCE_WORDS), 4 + len(TARGET_WORDS)) | state
    arrays = {name: x for name, x in arrays.items() if x is not None}
    write_folder(tmp_path, options, arrays, SOURCE_WORDS, TARGET_WORDS)
    result = run_command("import", f"--from={tmp_path}", f"--output={tmp_path / 'out'}")
    assert result.code == 2
    assert named.replace("\\", "") in result.error
    assert not (tmp_path / "out").exists()


def test_code_in_a_checkpoint_is_not_executed(tmp_path):
    torch.save({"args": Hostile(tmp_path / "executed"), "model": {}}, tmp_path / "model.pt")
    result = run_command("import", f"--from={tmp_path}", f"--output={tmp_path / 'out'}")
    assert result.code == 2
    assert "weights_only=True" in result.error
    assert not (tmp_path / "executed").exists()
