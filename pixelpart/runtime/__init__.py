"""What the code runs on: device, precision, processes, progress on a terminal, user code."""
