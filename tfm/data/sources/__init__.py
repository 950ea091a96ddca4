"""Sources: where rows of texts come from."""
