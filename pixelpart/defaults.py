"""What `evaluate` does unless told otherwise; for the code, the command line and the report. No torch in here."""

ATTACKS = ("natural", "pgd20")
EPS = 8 / 255
STEP_SIZE = 2 / 255
SEED = 0
