"""A language model of Python's reference texts with word pieces. Runs on any machine without a download.

    python train.py --config=configs/lm_pydoc.py --workdir=runs/lm_pydoc
    python eval.py --workdir=runs/lm_pydoc
    tfm generate --workdir=runs/lm_pydoc --prefix="The for statement"

The variants lm_pydoc:lstm and lm_pydoc:feed_forward train the language models of Zaremba et al. 2014 and of
Bengio et al. 2003, at other sizes, on the same data.

The texts come from `pydoc_data.topics` of the running Python. They differ a little between its versions.
Hardware and expected result (8 CPU minutes, 1.99 bits per character on validation): see
benchmarks/notes/lm_pydoc.md.
"""

from tfm.config import to_config_dict
from tfm.data.config import DocumentsConfig
from tfm.decoding.config import GenerationConfig
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.models.feed_forward_lm import FeedForwardLMConfig
from tfm.models.lstm_lm import LSTMConfig
from tfm.tasks.language_modeling import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW

MODELS = {
    "": DecoderLMConfig(
        layers=4,
        d_model=128,
        d_ff=512,
        heads=4,
        dropout=0.1,
        attention_dropout=0.0,
        max_positions=256,
    ),
    "lstm": LSTMConfig(layers=1, features=256, dropout=0.2, initial_range=0.1, forget_bias=1.0),
    "feed_forward": FeedForwardLMConfig(context=6, embedding_features=64, hidden_features=256, dropout=0.2),
}
TRAINING_TOKENS = 1400 * 1024  # of each model


def get_config(name=""):
    if name not in MODELS:
        raise ValueError(f"Expected lm_pydoc:lstm, lm_pydoc:feed_forward or no name, got {name!r}.")
    batch_tokens = 2048 if name else 1024
    steps = TRAINING_TOKENS // batch_tokens
    return to_config_dict(
        Config(
            model=MODELS[name],
            data=DocumentsConfig(
                kind="builtin",
                name="pydoc_topics",
                tokenizer="word_pieces",
                vocabulary_size=1000,
                row_length=128,
                batch_tokens=batch_tokens,
            ),
            training=TrainingConfig(
                steps=steps,
                schedule="cosine_decay",
                warmup_steps=100,
                peak_learning_rate=3e-3,
                optimizer=AdamW(b2=0.99, weight_decay=0.1),
                clip_norm=1.0,
                log_every=50,
                eval_every=steps // 2,
                checkpoint_every=steps // 2,
                keep=2,
            ),
            decoding=GenerationConfig(max_tokens=128, temperature=0.8),
            stride=32,
        )
    )
