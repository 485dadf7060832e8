"""A model as an attack sees it: eval mode, no trace left on it, batch norm folded, captured on a GPU."""
