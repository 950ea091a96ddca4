"""Files of tokenizers that another program might have written."""

import io
import json

import pytest
import sentencepiece

from tests.support.pairs import TEXTS


def train_model(texts=TEXTS, **options):
    """Returns the content of a SentencePiece model that another program might have trained."""
    model = io.BytesIO()
    ids = {"pad_id": 3, "vocab_size": 60, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, minloglevel=2, **ids | options
    )
    return model.getvalue()


def make_json(kind, tokens=("<unk>", "<s>", "</s>", "<pad>"), texts=TEXTS, **extra):
    """Returns the content of a tokenizer.json. Skips the test if the package is not installed."""
    hf = pytest.importorskip("tokenizers", reason="the optional package tokenizers is not installed")
    options = {"special_tokens": list(tokens), "show_progress": False}
    if kind == "bytes":
        made = hf.Tokenizer(hf.models.BPE())
        made.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = hf.decoders.ByteLevel()
        alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
        trainer = hf.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, **options)
    elif kind == "wordpiece":
        made = hf.Tokenizer(hf.models.WordPiece(unk_token=tokens[0]))
        made.pre_tokenizer = hf.pre_tokenizers.Whitespace()
        made.decoder = hf.decoders.WordPiece(cleanup=False)
        trainer = hf.trainers.WordPieceTrainer(vocab_size=50, **options)
    elif kind == "words":
        made = hf.Tokenizer(hf.models.WordLevel(unk_token=tokens[0]))
        made.pre_tokenizer = hf.pre_tokenizers.WhitespaceSplit()
        trainer = hf.trainers.WordLevelTrainer(**options)
    else:
        made = hf.Tokenizer(hf.models.Unigram())
        made.pre_tokenizer = hf.pre_tokenizers.Metaspace()
        made.decoder = hf.decoders.Metaspace()
        trainer = hf.trainers.UnigramTrainer(vocab_size=60, unk_token=tokens[0], **options)
    made.train_from_iterator(texts, trainer)
    content = json.loads(made.to_str())
    return json.dumps(content | extra).encode()
