"""Opening the folder of a run or an exported bundle: config, assets and parameters."""
