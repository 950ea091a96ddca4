"""Writes hf_bert.npz: a tiny BertForPreTraining of Hugging Face with random parameters, and its outputs.

    python tests/systems/bert/hf_bert.py

Needs the packages torch and transformers (made with 2.13 and 5.24). The parameters have the names and shapes
of `tfm.systems.bert.model`, joined by "/".
"""

import pathlib
import re

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

HEADS, FEATURES = 4, 16
SIZES = {"vocab_size": 40, "hidden_size": FEATURES, "num_hidden_layers": 2, "num_attention_heads": HEADS}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 12, "type_vocab_size": 2}
RENAMED = [  # (name in Hugging Face, name in tfm)
    (r"bert\.embeddings\.word_embeddings\.weight", "embedding/table"),
    (r"bert\.embeddings\.position_embeddings\.weight", "positions/table"),
    (r"bert\.embeddings\.token_type_embeddings\.weight", "types/table"),
    (r"bert\.embeddings\.LayerNorm", "embedding_norm"),
    (r"bert\.encoder\.layer\.(\d)\.attention\.self", r"encoder/layers_\1/self_attention"),
    (r"bert\.encoder\.layer\.(\d)\.attention\.output\.dense", r"encoder/layers_\1/self_attention/output"),
    (
        r"bert\.encoder\.layer\.(\d)\.attention\.output\.L",
        r"encoder/layers_\1/self_attention_residual/norm.L",
    ),
    (r"bert\.encoder\.layer\.(\d)\.intermediate\.dense", r"encoder/layers_\1/feed_forward/hidden"),
    (r"bert\.encoder\.layer\.(\d)\.output\.dense", r"encoder/layers_\1/feed_forward/output"),
    (r"bert\.encoder\.layer\.(\d)\.output", r"encoder/layers_\1/feed_forward_residual/norm"),
    (r"bert\.pooler\.dense", "pooler"),
    (r"cls\.predictions\.transform\.dense", "transform"),
    (r"cls\.predictions\.transform\.LayerNorm", "transform_norm"),
    (r"cls\.predictions\.bias", "embedding/bias"),
    (r"cls\.seq_relationship", "follows"),
]


def convert(name, x):
    """Returns the name and the array of a parameter in tfm."""
    is_norm = "LayerNorm" in name
    for pattern, replacement in RENAMED:
        name, count = re.subn(pattern, replacement, name)
        if count:
            break
    name = name.replace(".LayerNorm", "").replace(".", "/")
    if name.endswith("/weight"):
        name = name.removesuffix("weight") + ("scale" if is_norm else "kernel")
        x = x if is_norm else x.T
    if re.search("self_attention/(query|key|value)", name):
        x = x.reshape(*x.shape[:-1], HEADS, FEATURES // HEADS)
    if name.endswith("self_attention/output/kernel"):
        x = x.reshape(HEADS, FEATURES // HEADS, FEATURES)
    return name, x


def main():
    """Writes the file next to this script."""
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(**SIZES)).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    tokens = torch.randint(3, SIZES["vocab_size"], (3, 10))
    tokens[1, 7:] = tokens[2, 4:] = 0
    types = torch.zeros_like(tokens)
    types[0, 5:] = types[1, 3:7] = 1
    outputs = model(input_ids=tokens, attention_mask=(tokens != 0).long(), token_type_ids=types)
    arrays = {"tokens": tokens, "types": types}
    arrays |= {"logits": outputs.prediction_logits, "follows": outputs.seq_relationship_logits}
    parameters = dict(convert(name, x.detach().numpy()) for name, x in model.named_parameters())
    path = pathlib.Path(__file__).with_name("hf_bert.npz")
    np.savez_compressed(path, **{name: x.detach().numpy() for name, x in arrays.items()}, **parameters)


if __name__ == "__main__":
    main()
