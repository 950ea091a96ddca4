"""Pictures: training curves and attention maps."""
