"""Device, precision, processes, progress display, and user code."""
