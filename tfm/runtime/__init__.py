"""Memory of the process and of a device."""
