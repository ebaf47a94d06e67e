"""Measured against simulated: one module per family of scenarios of the validation suite S01-S18."""
