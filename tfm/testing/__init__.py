"""Contracts as pytest classes: what every model and every task must do.

A package that adds a model, for example, subclasses the contract of its kind and lists its cases. It then has
every test:

    from tfm.testing.models import LanguageModelContract

    class TestMyModel(LanguageModelContract):
        cases = {"small": MyModel(MyConfig(d_model=16), vocabulary_size=20)}

The contracts need pytest.
"""
