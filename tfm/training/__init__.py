"""Training that knows no model and no task by name: state, step, parallel, checkpoints, reporting, loop."""
