"""A run's folder or an exported bundle, opened: config, assets, weights."""
