"""How far a model can be trusted: accuracy under attack, with intervals, kept so that nothing stale is reused."""
