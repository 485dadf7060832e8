"""Experiments: several runs, trained, evaluated and compared."""
