"""Square on a network that has no gradient."""

import pytest
import torch
from torch import nn

from pixelpart.attacks import SEARCHES
from pixelpart.attacks.square import square_search
from pixelpart.errors import UserError
from pixelpart.evaluation.evaluate import evaluate


class Closed(nn.Module):
    """A network through which no gradient comes."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    @torch.no_grad()
    def forward(self, x):
        return self.net(x)


def test_square_needs_no_gradient_and_is_run_where_there_is_none(net, pair, monkeypatch):
    """Its figures are those of the open network; whoever follows a gradient is refused."""
    monkeypatch.setitem(SEARCHES, "square", square_search(100))
    settings = {"data": pair, "attacks": ["natural", "square"], "eps": 0.02}
    closed, opened = evaluate(Closed(net.eval()), **settings), evaluate(net.eval(), **settings)
    assert closed.flags["square"].tolist() == opened.flags["square"].tolist()
    assert closed["square"].warnings == []
    assert 0 < closed["square"].correct < closed["natural"].correct
    with pytest.raises(UserError, match=r"no gradient reaches the model's input.*only natural and square can run"):
        evaluate(Closed(net.eval()), **settings | {"attacks": ["natural", "square", "pgd20"]})
