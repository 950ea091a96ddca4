"""Writes the models of this folder: python tests/export/huggingface/make.py FOLDER

Each folder is a model of transformers with random weights (config.json and model.safetensors), and check.npz
with inputs and the logits of transformers. The Python that runs this script needs torch and transformers, and
Pillow for DETR.
"""

import os
import re
import sys

import numpy as np
import torch
import transformers as hf

SIZE, LAST = 21, 20  # ids of most models, and the largest
NOISE = 0.2  # added to all parameters, because most biases and norms begin with a constant
BART = {
    "vocab_size": SIZE,
    "d_model": 8,
    "max_position_embeddings": 16,
    **{f"{stack}_layers": 1 for stack in ("encoder", "decoder")},
    **{f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 12 for stack in ("encoder", "decoder")},
}
MARIAN = BART | {
    "scale_embedding": True,
    "activation_function": "swish",
    "pad_token_id": LAST,
    "eos_token_id": 0,
    "decoder_start_token_id": LAST,
}
MULTILINGUAL = BART | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
T5 = {
    "vocab_size": SIZE,
    "d_model": 8,
    "d_kv": 3,
    "d_ff": 12,
    "num_layers": 2,
    "num_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}


def pairs(pad, start, end, *, low=3, forced=(), prefix=(), length=9):
    """Returns random padded sources and decoder inputs."""
    source = torch.randint(low, LAST, (3, 11))
    source[:, : len(prefix)] = torch.tensor(prefix, dtype=torch.int64)
    for row, tokens in enumerate((11, 8, 5)):
        source[row, tokens - 1] = end
        source[row, tokens:] = pad
    target = torch.randint(low, LAST, (3, length))
    target[:, : 1 + len(forced)] = torch.tensor([start, *forced])
    return {"input_ids": source, "attention_mask": (source != pad).long(), "decoder_input_ids": target}


def write(folder, name, model, **inputs):
    """Adds noise to the parameters and frozen statistics, and writes a model with its logits."""
    frozen = re.compile(r"final_logits_bias|.*\.normalization\.(weight|bias|running_mean|running_var)")
    biases = [x for key, x in model.named_buffers() if frozen.fullmatch(key)]
    with torch.no_grad():
        for x in [*(x for x in model.parameters() if x.requires_grad), *biases]:
            x.add_(NOISE * torch.randn_like(x))
        path = os.path.join(folder, name)
        model.eval().save_pretrained(path)
        outputs = model(**inputs)
    tensors = inputs | {key: x for key, x in outputs.items() if key.endswith(("logits", "pred_boxes"))}
    arrays = {key.removeprefix("prediction_"): x.numpy() for key, x in tensors.items()}
    np.savez(os.path.join(path, "check.npz"), **arrays)
    if os.path.exists(os.path.join(path, "generation_config.json")):
        os.remove(os.path.join(path, "generation_config.json"))


def main(folder):
    """Writes all models."""
    torch.manual_seed(0)
    marian = pairs(LAST, LAST, 0, low=1)
    write(folder, "marian-swish", hf.MarianMTModel(hf.MarianConfig(**MARIAN)), **marian)
    two = hf.MarianConfig(**MARIAN, decoder_vocab_size=SIZE + 2, share_encoder_decoder_embeddings=False)
    write(folder, "marian-separate", hf.MarianMTModel(two), **marian)
    bart = hf.BartForConditionalGeneration(hf.BartConfig(**MULTILINGUAL))
    write(folder, "bart", bart, **pairs(1, 2, 2, forced=[0], prefix=[0]))
    many = pairs(1, 2, 2, forced=[LAST - 2], prefix=[LAST - 1])
    mbart = hf.MBartConfig(**MULTILINGUAL, scale_embedding=True, activation_function="gelu")
    write(folder, "mbart", hf.MBartForConditionalGeneration(mbart), **many)
    m2m = hf.M2M100Config(**MULTILINGUAL, scale_embedding=True, activation_function="relu")
    write(folder, "m2m_100", hf.M2M100ForConditionalGeneration(m2m), **many)
    t5 = pairs(0, 0, 1, length=25)
    write(folder, "t5", hf.T5ForConditionalGeneration(hf.T5Config(**T5)), **t5)
    gated = hf.T5ForConditionalGeneration(hf.T5Config(**T5, feed_forward_proj="gated-gelu"))
    gated.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn(SIZE, T5["d_model"]))
    gated.config.tie_word_embeddings = gated.config.scale_decoder_outputs = False
    write(folder, "t5-v1_1", gated, **t5)
    gpt2 = hf.GPT2Config(
        vocab_size=SIZE, n_positions=24, n_embd=8, n_layer=2, n_head=2, bos_token_id=LAST, eos_token_id=LAST
    )
    tokens = torch.randint(0, LAST, (3, 20))
    tokens[:, 0] = LAST
    write(folder, "gpt2", hf.GPT2LMHeadModel(gpt2), input_ids=tokens)
    vit = hf.ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        id2label={i: f"label {i}" for i in range(7)},
    )
    write(folder, "vit", hf.ViTForImageClassification(vit), pixel_values=torch.randn(3, 3, 8, 8))
    bert = {
        "vocab_size": SIZE,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
        "pad_token_id": 2,
        "bos_token_id": 5,
        "eos_token_id": 4,
    }
    tokens = torch.randint(6, SIZE, (3, 11))
    tokens[:, 0], tokens[:, 6] = 5, 4
    types = (torch.arange(11) > 6).long().expand(3, 11)
    for row, length in enumerate((11, 9, 8)):
        tokens[row, length - 1], tokens[row, length:] = 4, 2
    texts = {"input_ids": tokens, "attention_mask": (tokens != 2).long(), "token_type_ids": types}
    write(folder, "bert", hf.BertForPreTraining(hf.BertConfig(**bert)), **texts)
    write(folder, "bert-masked", hf.BertForMaskedLM(hf.BertConfig(**bert)), **texts)
    classes = hf.BertConfig(**bert, num_labels=3)
    write(folder, "bert-classes", hf.BertForSequenceClassification(classes), **texts)
    write(folder, "bert-tags", hf.BertForTokenClassification(hf.BertConfig(**bert)), **texts)
    write_detr(folder)


def write_detr(folder):
    """Writes DETR with the ResNet of transformers, and its outputs for pictures of two sizes."""
    torch.manual_seed(0)
    backbone = hf.ResNetConfig(
        embedding_size=2,
        hidden_sizes=[8, 16],
        depths=[2, 1],
        layer_type="bottleneck",
        out_features=["stage2"],
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        backbone=None,
        num_queries=3,
        d_model=8,
        id2label={i: f"label {i}" for i in range(3)},
        **{f"{stack}_layers": 1 for stack in ("encoder", "decoder")},
        **{f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": 12 for stack in ("encoder", "decoder")},
    )
    preprocessor = hf.DetrImageProcessor(do_resize=False)
    sizes = (20, 32), (32, 17)
    pictures = [torch.randint(0, 256, (height, width, 3), dtype=torch.uint8) for height, width in sizes]
    pixels = preprocessor([x.numpy() for x in pictures], return_tensors="pt")
    write(folder, "detr", hf.DetrForObjectDetection(config), **pixels)
    preprocessor.save_pretrained(os.path.join(folder, "detr"))
    path = os.path.join(folder, "detr", "check.npz")
    arrays = {f"picture_{i}": x.numpy() for i, x in enumerate(pictures)}
    np.savez(
        path, **{key: x for key, x in np.load(path).items() if key.endswith(("logits", "boxes"))}, **arrays
    )


if __name__ == "__main__":
    main(sys.argv[1])
