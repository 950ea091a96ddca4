"""The division of parameters and rows over devices: axis names, mesh, and gathered parameters."""
