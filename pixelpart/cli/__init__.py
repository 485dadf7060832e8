"""The command line: one file per command. torch is imported only after the arguments have been checked."""
