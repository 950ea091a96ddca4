"""Import of a Transformer of fairseq: model.pt and the dictionaries dict.LANGUAGE.txt.

The file is a pickle. PyTorch reads it without executing its code, so PyTorch must be installed.
"""

import os
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfm.errors import UserError
from tfm.export.from_huggingface import write_model
from tfm.export.write import check_absent
from tfm.huggingface.arrays import FUSED_PARTS, Entry
from tfm.huggingface.families import LAYER_NORM_EPSILON, bart_entries, translation_family
from tfm.huggingface.fields import Fields
from tfm.huggingface.folder import Weights
from tfm.huggingface.vocabulary import read_fairseq
from tfm.models.transformer import TransformerConfig
from tfm.workdir.bundle import check_sizes

CHECKPOINT_FILE = "model.pt"
PADDING_ID = 1  # positions begin after it
BUFFERS = re.compile(r".*\.(version|_float_tensor)")
FUSED = re.compile(r"(.*)\.in_proj_(weight|bias)")  # in old files
SIDES = ("encoder", "decoder")
SIZES = {"d_model": "embed_dim", "d_ff": "ffn_embed_dim", "heads": "attention_heads"}
REQUIRED = {
    "encoder_learned_pos": False,
    "decoder_learned_pos": False,
    "no_token_positional_embeddings": False,
    "adaptive_input": False,
    "adaptive_softmax_cutoff": None,
    "cross_self_attention": False,
    "no_cross_attention": False,
}


def import_checkpoint(folder: str, output: str) -> None:
    """Writes a Transformer of fairseq as an export.

    Args:
      folder: folder with model.pt, the dictionaries, and sentencepiece.bpe.model if the texts need it.
      output: folder to write. It must be empty or not exist. After an error, it is not written.

    Raises:
      UserError: if PyTorch is missing, a file is damaged or not supported, or `output` cannot be written.
    """
    check_absent(output)
    path = os.path.join(folder, CHECKPOINT_FILE)
    options, arrays = _load(path)
    fields = Fields(options, path, arrays)
    model = fairseq_model(fields)
    if model.tied_embeddings == "three":
        arrays["model.shared.weight"] = arrays["model.encoder.embed_tokens.weight"]
    weights = LoadedWeights(folder, arrays)
    check_sizes(model, {name: ("F32", shape) for name, shape in weights.shapes.items()}, folder)
    write_model(FAMILY, model, fields, weights, read_fairseq(folder, fields), output)


class LoadedWeights(Weights):
    """Arrays that are in memory. Files of PyTorch cannot be read in parts."""

    def __init__(self, folder: str, arrays: Mapping[str, np.ndarray]):
        self.folder = folder
        self._arrays = arrays
        self.shapes = {name: x.shape for name, x in arrays.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]


def _load(path: str) -> tuple[Mapping[str, Any], dict[str, np.ndarray]]:
    """Returns the options and the arrays of a checkpoint, with the names of BART."""
    try:
        import torch  # an optional package
    except ImportError:
        raise UserError(f"{path} needs the package torch. Run pip install torch.") from None
    try:
        with torch.serialization.safe_globals([(types.SimpleNamespace, "argparse.Namespace")]):
            state = torch.load(path, map_location="cpu", weights_only=True)
        options = state.get("args") or state["cfg"]["model"]
        tensors = {name: x.float().numpy() for name, x in state["model"].items()}
    except Exception as error:  # PyTorch has no more specific class
        raise UserError(
            f"{path} is no checkpoint of fairseq that PyTorch reads with weights_only=True "
            f"({' '.join(str(error).split())[:200]}). Save its 'model' and 'args' alone with torch.save."
        ) from None
    arrays = {}
    for name, x in tensors.items():
        if match := FUSED.fullmatch(name):
            for part, letter in zip(np.split(x, FUSED_PARTS), "qkv", strict=True):
                arrays[f"model.{match[1]}.{letter}_proj.{match[2]}"] = part
        elif not BUFFERS.fullmatch(name):
            arrays[f"model.{name}".replace("decoder.embed_out", "decoder.output_projection.weight")] = x
    return options if isinstance(options, dict) else vars(options), arrays


def fairseq_model(fields: Fields) -> TransformerConfig:
    """Returns the config of a Transformer of fairseq."""
    for name, value in REQUIRED.items():
        fields.require(name, value)
    sizes = {ours: fields.get(f"encoder_{theirs}", int) for ours, theirs in SIZES.items()}
    for ours, theirs in SIZES.items():
        fields.require(f"decoder_{theirs}", sizes[ours])
    is_pre_norm = fields.get("encoder_normalize_before", bool, False)
    fields.require("decoder_normalize_before", is_pre_norm)
    shares_all = fields.get("share_all_embeddings", bool, False)
    shares_output = shares_all or fields.get("share_decoder_input_output_embed", bool, False)
    activation, _ = fields.activation("activation_fn", "relu")
    return TransformerConfig(
        **sizes,
        **{f"{side}_layers": fields.get(f"{side}_layers", int) for side in SIDES},
        attention_bias=True,
        activation=activation,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        norm_order="pre" if is_pre_norm else "post",
        embedding_norm=fields.get("layernorm_embedding", bool, False),
        scale_embedding=not fields.get("no_scale_embedding", bool, False),
        dropout=fields.get("dropout", float, 0.1),
        attention_dropout=fields.get("attention_dropout", float, 0.0),
        feed_forward_dropout=fields.get("activation_dropout", float, 0.0),
        positions="concatenated",
        first_position=PADDING_ID + 1,
        tied_embeddings="three" if shares_all else "two" if shares_output else "none",
        logits_bias=True,
    )


def fairseq_entries(model: TransformerConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of a Transformer of fairseq. BART has its names."""
    yield from bart_entries(model, fields, bias="")
    if model.tied_embeddings == "none":
        yield Entry("embedding/output", "model.decoder.output_projection.weight", "tokens")


FAMILY = translation_family(
    architecture="Transformer", prefix="model.", model=fairseq_model, entries=fairseq_entries
)
