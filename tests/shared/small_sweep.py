"""The command line, with `shapes` cut down to its first images and checkpoints after every step; also as a worker."""

import sys

import torch

from command_line import few
from pixelpart import data
from pixelpart.cli.main import main
from pixelpart.engine.train import train
from pixelpart.sweeps import local

COMMAND = [sys.executable, __file__]
local.WORKER = [*COMMAND, "worker"]


def cut_down():
    data.SETS["shapes"] = few()
    train.__kwdefaults__["save_seconds"] = 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    cut_down()
    sys.exit(local.serve() if sys.argv[1:] == ["worker"] else main())
