"""BERT as a tagger: the gender and the case of the nouns in German sentences of the built-in language.

    python train.py --config=configs/bert_nouns.py --workdir=runs/bert_nouns
    python eval.py --workdir=runs/bert_nouns

To begin with the model of configs/bert_toy.py, use its tokenizer and its parameters:

    --config.data.tokenizer=runs/bert_toy/vocabulary.model --warm_start=runs/bert_toy --warm_start_map="*=*"

`--config.data.train="train[:100]"` trains on 100 labelled sentences.
Expected: see benchmarks/notes/bert.md.

Deviations from BERT base: 2 layers of 128 features without dropout of attention weights, texts of at most
64 tokens, 1,000 word pieces, and 250 steps at a peak learning rate of 1e-3 with b2 = 0.99.
"""

from tfm.config import to_config_dict
from tfm.systems.bert.classification import Config
from tfm.systems.bert.labelled_texts import LabelledConfig
from tfm.systems.bert.model import BertConfig
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW


def get_config():
    return to_config_dict(
        Config(
            model=BertConfig(
                encoder_layers=2,
                d_model=128,
                d_ff=512,
                heads=4,
                attention_dropout=0.0,
                max_positions=64,
                head="tags",
                classes=9,
            ),
            data=LabelledConfig(
                kind="tfm.systems.bert.builtin_labels:noun_genders",
                vocabulary_size=1000,
                max_length=64,
                batch_tokens=1024,
            ),
            training=TrainingConfig(
                steps=250,
                schedule="linear_decay",
                warmup_steps=25,
                peak_learning_rate=1e-3,
                optimizer=AdamW(b2=0.99, weight_decay=0.01),
                clip_norm=1.0,
                log_every=100,
                eval_every=250,
                checkpoint_every=250,
                keep=1,
            ),
        )
    )
