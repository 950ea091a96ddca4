"""BERT, pretrained on the built-in language: each document is an English sentence and its translation.

    python train.py --config=configs/bert_toy.py --workdir=runs/bert_toy
    python eval.py --workdir=runs/bert_toy

The second text of half of the rows is therefore the translation of the first. See configs/bert_nouns.py and
configs/bert_classes.py for the tasks that begin with this model.
Hardware and expected result: see benchmarks/notes/bert.md.

Deviations from BERT base: 2 layers of 128 features without dropout of attention weights, rows of at most
64 tokens, 1,000 word pieces, and 3,000 steps at a peak learning rate of 2e-3 with b2 = 0.99.
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
                kind="tfm.systems.bert.builtin_labels:parallel",
                tokenizer="word_pieces",
                vocabulary_size=1000,
                row_length=64,
                batch_tokens=2048,
            ),
            training=TrainingConfig(
                steps=3000,
                schedule="linear_decay",
                warmup_steps=150,
                peak_learning_rate=2e-3,
                optimizer=AdamW(b2=0.99, weight_decay=0.01),
                clip_norm=1.0,
                log_every=100,
                eval_every=1000,
                checkpoint_every=1000,
                keep=2,
            ),
        )
    )
