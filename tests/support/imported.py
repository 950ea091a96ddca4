"""Imported models of Hugging Face transformers."""

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models
from tfm.export.from_huggingface import to_parameters
from tfm.huggingface.arrays import TokenOrder
from tfm.huggingface.fields import Fields
from tfm.huggingface.folder import Weights, read_json
from tfm.huggingface.lookup import find_families
from tfm.workdir.bundle import flatten, unflatten

# {family: task of its models}. All other families translate.
TASKS = {"gpt2": "language_modeling", "vit": "image_classification", "detr": "detection"}
TASKS |= dict.fromkeys(("bert", "roberta", "distilbert"), "masked_language_modeling")


class Imported:
    """The model of a folder of transformers in tfm, without its tokenizer."""

    def __init__(self, folder):
        path = str(folder)
        self.values = read_json(f"{path}/config.json")
        self.family = find_families()[self.values["model_type"]]
        self.weights = Weights(path, self.family.prefix)
        self.fields = Fields(self.values, f"{path}/config.json", self.weights, self.weights.shapes)
        self.config = self.family.model(self.fields)
        self.task = TASKS.get(self.values["model_type"], "translation")
        if getattr(self.config, "head", "pretraining") != "pretraining":
            self.task = "text_classification"
        reads_images = self.task in ("image_classification", "detection")
        self.order = None if reads_images else self._order_tokens()
        sizes = {} if reads_images else {"vocabulary_size": len(self.order)}
        self.model = models.find(self.config.name).Model(self.config, **sizes)
        inputs = self._make_inputs()
        like = jax.eval_shape(lambda key: self.model.init(key, *inputs, train=False), jax.random.key(0))
        self.shapes = {key: x.shape for key, x in flatten(like).items()}
        self.parameters = self.convert(self.weights)
        self.variables = unflatten({key: jnp.asarray(x) for key, x in self.parameters.items()}, like)

    def _order_tokens(self):
        """Returns the order of the tokens in tfm. GPT-2 has no padding, so its config names another token."""
        tokens = max(self.values["vocab_size"], self.values.get("decoder_vocab_size") or 0)
        pad = None if self.task == "language_modeling" else self.values["pad_token_id"]
        start = self.values.get("decoder_start_token_id", self.values.get("bos_token_id"))
        return TokenOrder(tokens, pad=pad, start=start, end=self.values["eos_token_id"])

    def _make_inputs(self):
        """Returns the arguments of the model, from which the shapes of its parameters follow."""
        if self.order is None:
            size = getattr(self.config, "image_size", 32)
            return [jnp.zeros((1, size, size, 3))]
        tokens = jnp.ones((1, 1), jnp.int32)
        return [tokens, tokens] if self.task == "translation" else [tokens]

    def convert(self, weights):
        """Returns {name in tfm: array} of the arrays of a folder."""
        return to_parameters(self.family, self.config, self.fields, weights, self.shapes, self.order)

    def new_ids(self, ids):
        """Returns the ids of tfm for ids of transformers."""
        new = np.zeros(self.order.size, int)
        for i in reversed(range(len(self.order))):
            if self.order.ids[i] >= 0:
                new[self.order.ids[i]] = i
        return new[ids]
