"""One model for both directions of the built-in language, with a tag for the target language.

    python train.py --config=configs/quickstart_both_directions.py --workdir=runs/both
    tfm evaluate --workdir=runs/both
    echo '<en> Ein Freund kaufte einige Lastwagen.' | tfm translate --workdir=runs/both

The corpora are mixed by temperature (Arivazhagan et al. 2019), and each source begins with the tag of its
target language (Johnson et al. 2017). Evaluation reports the BLEU of each direction. Model, steps and
learning rate are those of configs/quickstart.py. Batches have 1,024 tokens instead of 512, and no sentences
are joined. Hardware and expected result: see docs/results.md.
"""

from tfm.config import to_config_dict
from tfm.configs.quickstart import MODEL
from tfm.data.config import PairsConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=MODEL,
            data=PairsConfig(
                kind="builtin",
                train="train,reversed:train",
                validation="validation,reversed:validation",
                test="test,reversed:test",
                tags="<de>,<en>",
                mixing="temperature:5",
                vocabulary_size=4000,
                normalization="nmt_nfkc_quotes",
                vocabulary_pairs=20_000,
                batching="packed",
                row_length=128,
                batch_tokens=1024,
            ),
            training=TrainingConfig(
                steps=2600,
                schedule="linear_decay",
                warmup_steps=300,
                learning_rate_scale=0.5,
                log_every=50,
                eval_every=1300,
                checkpoint_every=650,
                keep=3,
            ),
            validation_sentences=200,
        )
    )
