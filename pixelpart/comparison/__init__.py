"""Several runs side by side: tests between methods, and the distance from the curve of uniform budgets."""
