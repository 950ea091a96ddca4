"""Constituency parsing of only the Wall Street Journal (section 6.3; Table 4: 91.3 F1 on section 23).

    python train.py --config=configs/parsing_wsj.py --workdir=runs/parsing_wsj --config.data.directory=FOLDER
    python eval.py --workdir=runs/parsing_wsj

FOLDER contains train.mrg (sections 02 to 21), validation.mrg (22) and test.mrg (23), or other bracketed files
with these names. The Penn Treebank is licensed by the Linguistic Data Consortium and does not come with tfm.

Hardware and time: the paper gives neither. Here: not measured, because we do not
have the treebank.

The paper gives 4 layers, d_model 1024, a vocabulary of 16,000, beam 21, length penalty 0.3 and outputs of at
most the input length + 300. Its authors chose dropout and learning rate on section 22. All other values are
as in the base model, such as d_ff 2048 and 8 heads, and this config has the same values. Dropout 0.2, also
for attention weights, 16,000 steps of warm-up and at most 512 tokens come from tensor2tensor's
transformer_parsing_base. Unlike it, this config shares the output matrix with the embeddings. Neither source
gives the number of steps and the batch size. We chose 40,000 steps of 8,192 tokens on each side.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.decoding.config import DecodingConfig
from tfm.models import TransformerConfig
from tfm.systems.parsing.task import Config
from tfm.systems.parsing.treebank import TREEBANK
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=TransformerConfig(
                encoder_layers=4,
                decoder_layers=4,
                d_model=1024,
                d_ff=2048,
                heads=8,
                dropout=0.2,
                attention_dropout=0.2,
            ),
            data=PairsConfig(
                kind=TREEBANK,
                source_language="words",
                target_language="trees",
                vocabulary_size=16_000,
                max_length=512,
                batch_tokens=8192,
            ),
            decoding=DecodingConfig(beam_size=21, length_penalty=0.3, max_extra_tokens=300),
            training=TrainingConfig(
                steps=40_000, warmup_steps=16_000, eval_every=1000, checkpoint_every=1000
            ),
        )
    )
