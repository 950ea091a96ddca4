"""The configs that tfm ships, such as `from tfm.configs import quickstart`. `tfm/configs` links here."""
