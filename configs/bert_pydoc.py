"""BERT, pretrained on Python's reference texts with word pieces. Runs on any machine without a download.

    python train.py --config=configs/bert_pydoc.py --workdir=runs/bert_pydoc
    python eval.py --workdir=runs/bert_pydoc

The texts come from `pydoc_data.topics` of the running Python. They differ a little between its versions.
Hardware and expected result: see benchmarks/notes/bert.md.

Deviations from BERT base: 2 layers of 128 features without dropout of attention weights, rows of at most
64 tokens, 1,000 word pieces, and 1,500 steps at a peak learning rate of 2e-3 with b2 = 0.99.
"""

from tfm.config import to_config_dict
from tfm.systems.bert.masked_pairs import SentencesConfig
from tfm.systems.bert.model import BertConfig
from tfm.systems.bert.pretraining import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW


def get_config():
    return to_config_dict(
        Config(
            model=BertConfig(
                encoder_layers=2, d_model=128, d_ff=512, heads=4, attention_dropout=0.0, max_positions=64
            ),
            data=SentencesConfig(
                kind="builtin",
                name="pydoc_topics",
                tokenizer="word_pieces",
                vocabulary_size=1000,
                row_length=64,
                batch_tokens=2048,
            ),
            training=TrainingConfig(
                steps=1500,
                schedule="linear_decay",
                warmup_steps=150,
                peak_learning_rate=2e-3,
                optimizer=AdamW(b2=0.99, weight_decay=0.01),
                clip_norm=1.0,
                log_every=100,
                eval_every=500,
                checkpoint_every=500,
                keep=2,
            ),
        )
    )
