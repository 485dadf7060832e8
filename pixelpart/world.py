"""Who else takes part in a run: one process, or `size` of them, each with its slice of every batch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes to disk and to the screen."""
        return self.rank == 0

    def slice(self, n: int) -> slice:
        """This process's share of n rows: contiguous, and within one row of every other share."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)
