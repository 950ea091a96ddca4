"""BERT as a classifier of texts of the built-in language.

    python train.py --config=configs/bert_classes.py:pronouns --workdir=runs/bert_pronouns
    python eval.py --workdir=runs/bert_pronouns --split=pronoun

pronouns (the default): the German pronoun that translates "it" in an English sentence. The choice needs the
noun that "it" stands for. The split "pronoun" has nouns and adjectives that training never combines.
translations: an English and a German sentence, and whether the second is the translation of the first.

To begin with the model of configs/bert_toy.py, use its tokenizer and its parameters:

    --config.data.tokenizer=runs/bert_toy/vocabulary.model --warm_start=runs/bert_toy --warm_start_map="*=*"

The accuracies of both are not measured.

Deviations from BERT base: 2 layers of 128 features without dropout of attention weights, texts of at most
64 tokens, 1,000 word pieces, and 1,200 steps at a peak learning rate of 1e-3 with b2 = 0.99.
"""

from tfm.config import to_config_dict
from tfm.systems.bert.classification import Config
from tfm.systems.bert.labelled_texts import LabelledConfig
from tfm.systems.bert.model import BertConfig
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW

# {name: (number of classes, column of the second text)}
TASKS = {"pronouns": (3, ""), "translations": (2, "translation")}


def get_config(name="pronouns"):
    if name not in TASKS:
        raise ValueError(f"Expected {', '.join(TASKS)}, got {name!r}.")
    classes, second_column = TASKS[name]
    return to_config_dict(
        Config(
            model=BertConfig(
                encoder_layers=2,
                d_model=128,
                d_ff=512,
                heads=4,
                attention_dropout=0.0,
                max_positions=64,
                head="classes",
                classes=classes,
            ),
            data=LabelledConfig(
                kind=f"tfm.systems.bert.builtin_labels:{name}",
                second_column=second_column,
                vocabulary_size=1000,
                max_length=64,
                batch_tokens=1024,
            ),
            training=TrainingConfig(
                steps=1200,
                schedule="linear_decay",
                warmup_steps=100,
                peak_learning_rate=1e-3,
                optimizer=AdamW(b2=0.99, weight_decay=0.01),
                clip_norm=1.0,
                log_every=100,
                eval_every=400,
                checkpoint_every=400,
                keep=2,
            ),
        )
    )
