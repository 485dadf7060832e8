"""What all experiments share: scales and arms, running, reading results, tables and plots, the paper's numbers."""
