"""The observation of a language model that reads one text: attention, and the probability of each token."""

import functools
from typing import Any

from tfm.data.sources.documents import open_documents
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.batches import pad_ids
from tfm.errors import UserError
from tfm.visualize.observation import (
    Observation,
    check_length,
    check_memory,
    list_predictions,
    observe,
    text_track,
)
from tfm.visualize.words import label_tokens

DEFAULT_EXAMPLES = 2
DEFAULT_TOKENS = 32  # of a default example
DEFAULT_TEXTS = (  # if the documents of the run cannot be read, as in an export on another machine
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)


def default_texts(task: Any) -> list[str]:
    """Returns the beginnings of some validation documents."""
    try:
        documents = open_documents(task.config.data, "validation")
        texts = [text for (text,) in documents[: 2 * DEFAULT_EXAMPLES]]
    except UserError:
        texts = list(DEFAULT_TEXTS)
    limit = min(DEFAULT_TOKENS, task.model.config.max_length or DEFAULT_TOKENS) - 1  # the end is a token, too
    begins = (task.tokenizer.decode(ids[:limit]) for ids in task.tokenizer.encode(texts))
    # A cut within the bytes of a character leaves a replacement character.
    stripped = (text.rstrip("\ufffd").strip() for text in begins)
    return [text for text in stripped if text][:DEFAULT_EXAMPLES]


def observe_text(task: Any, params: Any, text: str, max_tokens: int) -> Observation:
    """Records what the model computes for each token of a text and for its end.

    Args:
      task, params: task and parameters of a language model.
      text: the text.
      max_tokens: maximum number of tokens, including the end.

    Raises:
      UserError: if the text is blank or too long, or its attention does not fit into the memory.
    """
    if not text.strip():
        raise UserError("Expected a text to read and draw, got an empty one.")
    predicted = [*task.tokenizer.encode([text])[0], EOS_ID]
    check_length(len(predicted), min(max_tokens, task.model.config.max_length or max_tokens))
    read = [BOS_ID, *predicted[:-1]]
    tokens, labels = (pad_ids([ids])[:, : task.model.config.max_length] for ids in (read, predicted))
    variables = {"params": params}
    check_memory(task.model, variables, tokens, labels=labels)
    lengths = {"read": len(read), "predicted": len(predicted)}
    probabilities, attention = observe(task.model, variables, tokens, labels=labels, lengths=lengths)
    tracks = {
        "read": text_track("piece read", task.tokenizer, read),
        "predicted": text_track("piece predicted", task.tokenizer, predicted),
    }
    label = functools.partial(label_tokens, task.tokenizer)
    predictions = list_predictions(probabilities, len(predicted), label)
    return Observation(text, "", tracks, attention, predictions)
