"""A language model of Python's reference texts with word pieces. Runs on any machine without a download.

    python train.py --config=configs/lm_pydoc.py --workdir=runs/lm_pydoc
    python eval.py --workdir=runs/lm_pydoc
    tfm generate --workdir=runs/lm_pydoc --prefix="The for statement"

The variants lm_pydoc:lstm and lm_pydoc:feed_forward train the language models of Zaremba et al. 2014 and of
Bengio et al. 2003, at other sizes, on the same data.

The texts come from `pydoc_data.topics` of the running Python. They differ a little between its versions.
Hardware and expected result (10 CPU minutes, 1.65 bits per character on validation): see
benchmarks/notes/lm_pydoc.md.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from tfm.config import field, to_config_dict
from tfm.data.config import DocumentsConfig
from tfm.decoding.config import GenerationConfig
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.models.feed_forward_lm import FeedForwardLMConfig
from tfm.models.lstm_lm import LSTMConfig
from tfm.schedules import Schedule
from tfm.tasks.language_modeling import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class Muon(OptimizerConfig):
    """Muon (Jordan et al. 2024) for kernels, and Adam for all other parameters, such as embeddings.

    An update of Muon is the momentum of a kernel with all singular values near 1.
    """

    name: str = "tfm.configs.lm_pydoc:Muon"
    momentum: float = field(0.95, "Decay of the momentum.", minimum=0, less_than=1)
    weight_decay: float = field(0.1, "Weight decay of the kernels.", minimum=0, maximum=10)
    adam_factor: float = field(0.15, "Factor of the learning rate of Adam.", greater_than=0, maximum=10)

    def make(self, learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns the Optax transformation of both optimizers."""
        kernels = optax.chain(
            optax.trace(self.momentum, nesterov=True),
            optax.stateless(lambda updates, _: jax.tree.map_with_path(orthogonalize, updates)),
            optax.add_decayed_weights(self.weight_decay),
            optax.scale_by_learning_rate(learning_rate),
        )
        others = optax.adam(lambda step: self.adam_factor * learning_rate(step), b2=0.99)
        return optax.multi_transform({"muon": kernels, "adam": others}, choose_optimizers)


def choose_optimizers(params: optax.Params) -> optax.Params:
    """Returns the name of the optimizer of each parameter."""
    return jax.tree.map_with_path(lambda path, _: "muon" if path[-1].key == "kernel" else "adam", params)


def orthogonalize(path: tuple, x: jax.Array) -> jax.Array:
    """Moves the singular values of the momentum of a kernel to about 1 by five steps of Newton and Schulz.

    A kernel with three axes is read as a matrix. Its rows are the heads and features if it is the output of
    attention. Otherwise, they are its columns.
    """
    rows = x.size // x.shape[-1] if path[-2].key == "output" else x.shape[0]
    columns = x.size // rows
    matrix = x.reshape(rows, columns)
    y = matrix.T if rows > columns else matrix
    y /= jnp.linalg.norm(y) + 1e-7
    for _ in range(5):
        square = y @ y.T
        y = 3.4445 * y + (-4.7750 * square + 2.0315 * square @ square) @ y
    y = y.T if rows > columns else y
    return (max(1, columns / rows) ** 0.5 * y).reshape(x.shape)


MODELS = {
    "": DecoderLMConfig(
        layers=4,
        d_model=128,
        d_ff=512,
        heads=4,
        positions="rotary",
        dropout=0.2,
        attention_dropout=0.0,
    ),
    "lstm": LSTMConfig(layers=1, features=256, dropout=0.2, initial_range=0.1, forget_bias=1.0),
    "feed_forward": FeedForwardLMConfig(context=6, embedding_features=64, hidden_features=256, dropout=0.2),
}
STEPS = 1600  # of each model


def get_config(name=""):
    if name not in MODELS:
        raise ValueError(f"Expected lm_pydoc:lstm, lm_pydoc:feed_forward or no name, got {name!r}.")
    return to_config_dict(
        Config(
            model=MODELS[name],
            data=DocumentsConfig(
                kind="builtin",
                name="pydoc_topics",
                tokenizer="word_pieces",
                vocabulary_size=1000,
                row_length=128,
                batch_tokens=1024,
            ),
            training=TrainingConfig(
                steps=STEPS,
                schedule="cosine_decay",
                warmup_steps=100,
                peak_learning_rate=0.02,
                optimizer=Muon(),
                clip_norm=1.0,
                log_every=50,
                eval_every=STEPS // 4,
                checkpoint_every=STEPS // 4,
                keep=2,
            ),
            decoding=GenerationConfig(max_tokens=128, temperature=0.8),
            stride=32,
        )
    )
