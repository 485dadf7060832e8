"""Training: a config becomes functions, the step reads like the paper's algorithm, the state is saved and resumed."""
