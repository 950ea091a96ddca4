"""A language model of Python's reference texts with word pieces. Runs on any machine without a download.

    python train.py --config=configs/lm_pydoc.py --workdir=runs/lm_pydoc
    python eval.py --workdir=runs/lm_pydoc
    tfm generate --workdir=runs/lm_pydoc --prefix="The for statement"

The variants lm_pydoc:lstm and lm_pydoc:feed_forward train the language models of Zaremba et al. 2014 and of
Bengio et al. 2003, at other sizes and dropout rates, on the same data. The LSTM has a forget bias of 1.

The texts come from `pydoc_data.topics` of the running Python. They differ a little between its versions.
Hardware and expected result: see benchmarks/notes/lm_pydoc.md.

Deviations from GPT-2: 4 layers of 128 features, rotary positions, dropout 0.2 except of attention weights,
1,000 word pieces, and rows of 128 tokens. All three models train with Muon.
"""

from tfm.config import to_config_dict
from tfm.data.config import DocumentsConfig
from tfm.decoding.config import GenerationConfig
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.systems.feed_forward_lm.model import FeedForwardLMConfig
from tfm.systems.lstm_lm.model import LSTMConfig
from tfm.tasks.language_modeling import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import Muon

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
