"""The case of the config of feed-forward language models."""

from tests.tasks.wiring_language_modeling import observe_model
from tests.wiring.case import Case
from tfm.systems.feed_forward_lm.model import FeedForwardLMConfig

CASES = [Case(FeedForwardLMConfig(embedding_features=6, hidden_features=5, dropout=0.1), observe_model)]
VALUES: dict[type, dict] = {}
