"""The authors' FAB in double precision."""

import torch


def in_double(monkeypatch, wanted=True):
    """The reference works in single precision by name; here its names mean double."""
    if wanted:
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        monkeypatch.setattr(torch, "zeros", doubled(torch.zeros))
        monkeypatch.setattr(torch, "ones", doubled(torch.ones))


def doubled(function):
    return lambda *args, **kwargs: function(*args, **{"dtype": torch.float64, **kwargs})
