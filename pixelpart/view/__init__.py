"""A model as an attack sees it: borrowed in eval mode, batch norm folded, in bf16, fused, captured."""
