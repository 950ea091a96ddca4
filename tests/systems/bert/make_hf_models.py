"""Writes the models of the folder hf_models: python tests/systems/bert/make_hf_models.py

Each folder is a model of transformers with random weights (config.json and model.safetensors), and check.npz
with inputs and the outputs of transformers. Needs the packages torch and transformers (made with 2.13, 5.24).
"""

import pathlib

import numpy as np
import torch
import transformers as hf

SIZE, LENGTH = 21, 11
NOISE = 0.2  # added to all parameters, because most biases and norms begin with a constant
FOLDER = pathlib.Path(__file__).with_name("hf_models")
BERT = {
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
ROBERTA = BERT | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5}
ROBERTA |= {"type_vocab_size": 1, "max_position_embeddings": 18}
DISTILBERT = {"vocab_size": SIZE, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12}
DISTILBERT |= {"max_position_embeddings": 16, "pad_token_id": 2, "bos_token_id": 5, "eos_token_id": 4}


def write(name, model, types=True):
    """Adds noise to the parameters and writes a model with its inputs and outputs."""
    config = model.config
    tokens = torch.randint(6, SIZE, (3, LENGTH))
    tokens[:, 0], tokens[:, 6] = config.bos_token_id, config.eos_token_id
    for row, length in enumerate((11, 9, 8)):
        tokens[row, length - 1], tokens[row, length:] = config.eos_token_id, config.pad_token_id
    inputs = {"input_ids": tokens, "attention_mask": (tokens != config.pad_token_id).long()}
    if types:
        inputs["token_type_ids"] = (torch.arange(LENGTH) > 6).long().expand(3, LENGTH)
    with torch.no_grad():
        for x in model.parameters():
            x.add_(NOISE * torch.randn_like(x))
        model.eval().save_pretrained(FOLDER / name)
        outputs = model(**inputs, output_hidden_states=True)
    arrays = {key: x for key, x in outputs.items() if key in ("logits", "pooler_output")}
    arrays = inputs | arrays | {"features": outputs.hidden_states[-1]}
    np.savez(FOLDER / name / "check.npz", **{key: x.numpy() for key, x in arrays.items() if x is not None})


def main():
    """Writes all models."""
    torch.manual_seed(0)
    write("bert-base", hf.BertModel(hf.BertConfig(**BERT)))
    write("bert-base-without-pooler", hf.BertModel(hf.BertConfig(**BERT), add_pooling_layer=False))
    write("bert-number", hf.BertForSequenceClassification(hf.BertConfig(**BERT, num_labels=1)))
    write("roberta-base", hf.RobertaModel(hf.RobertaConfig(**ROBERTA)), types=False)
    write("roberta-masked", hf.RobertaForMaskedLM(hf.RobertaConfig(**ROBERTA)), types=False)
    classes = hf.RobertaConfig(**ROBERTA, num_labels=3)
    write("roberta-classes", hf.RobertaForSequenceClassification(classes), types=False)
    write("roberta-tags", hf.RobertaForTokenClassification(hf.RobertaConfig(**ROBERTA)), types=False)
    write("distilbert-base", hf.DistilBertModel(hf.DistilBertConfig(**DISTILBERT)), types=False)
    write("distilbert-masked", hf.DistilBertForMaskedLM(hf.DistilBertConfig(**DISTILBERT)), types=False)
    classes = hf.DistilBertConfig(**DISTILBERT, num_labels=3)
    write("distilbert-classes", hf.DistilBertForSequenceClassification(classes), types=False)
    write(
        "distilbert-tags", hf.DistilBertForTokenClassification(hf.DistilBertConfig(**DISTILBERT)), types=False
    )


if __name__ == "__main__":
    main()
