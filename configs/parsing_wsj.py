"""Constituency parsing of the Wall Street Journal alone (section 6.3; Table 4: 91.3 F1 on section 23).

    python train.py --config=configs/parsing_wsj.py --workdir=runs/parsing_wsj --config.data.directory=FOLDER
    python eval.py --workdir=runs/parsing_wsj

FOLDER has train.mrg (sections 02 to 21), validation.mrg (22) and test.mrg (23), or any other bracketed files
of these names. The Penn Treebank is licensed by the Linguistic Data Consortium: it does not come with tfm.

Hardware and time in the paper: not given. Here: not measured, for want of the data.

The paper gives 4 layers, d_model 1024, a vocabulary of 16,000, beam 21, length penalty 0.3 and outputs of at
most the input + 300; dropout and learning rate were chosen on section 22, and all else is that of its base
model: d_ff 2048 and 8 heads, here too. Dropout 0.2, of attention weights too, 16,000 steps of warm-up and at
most 512 tokens are those of tensor2tensor's transformer_parsing_base, which does not share the output matrix
with the embeddings; here it is shared. Chosen here, as neither gives them: 40,000 steps of 8,192 tokens a
side.
"""

from tfm.config import to_config_dict
from tfm.data.config import DataConfig
from tfm.decoding.config import DecodingConfig
from tfm.models import TransformerConfig
from tfm.tasks.parsing import Config
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
            data=DataConfig(
                kind="treebank",
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
