"""Runs that belong together: several trainings, their evaluation, and what follows from them."""
