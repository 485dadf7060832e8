"""Many runs: a TOML grid -> configs -> jobs that train, evaluate and may be killed; local or on Slurm; one table."""
