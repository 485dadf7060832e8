import pytest
import torch

from pixelpart.data import check_images
from pixelpart.errors import UserError

X = torch.rand(4, 3, 8, 8)
Y = torch.tensor([0, 1, 2, 9])


def with_pixel(value):
    x = X.clone()
    x[1, 2, 3, 4] = value
    return x


@pytest.mark.parametrize("x", [X, X.double(), X.half(), (X * 255).byte(), torch.zeros_like(X), torch.ones_like(X)])
@pytest.mark.parametrize("y", [Y, Y.int(), Y.to(torch.uint8)])
def test_good_images_pass(x, y):
    check_images(x, y, 10)
    check_images(x, y, 10, shape=(3, 8, 8))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (with_pixel(1.5), Y, r"\[.*, 1\.5\]"),
        (with_pixel(-0.01), Y, r"\[-0\.01, "),
        (with_pixel(float("nan")), Y, "NaN"),
        (with_pixel(float("inf")), Y, "NaN or infinite"),
        (X * 255, Y, "expected uint8, or float in"),
        ((X * 255).long(), Y, "images are int64"),
        (X[0], Y, r"shape \(3, 8, 8\), not \(n, 3, h, w\)"),
        (X.permute(0, 2, 3, 1), Y, "channels come before rows"),
        (X[:0], Y[:0], r"shape \(0, 3, 8, 8\)"),
        (X, Y[:3], r"labels have shape \(3,\); 4 images need \(4,\)"),
        (X, Y[:, None], r"labels have shape \(4, 1\)"),
        (X, Y.float(), "labels are float32"),
        (X, torch.tensor([0, 1, 2, 10]), "label 10 is out of range; 10 classes are numbered 0 to 9"),
        (X, torch.tensor([0, -1, 2, 3]), "label -1 is out of range"),
    ],
)
def test_bad_images_and_labels_are_named(x, y, message):
    with pytest.raises(UserError, match=message):
        check_images(x, y, 10)


def test_a_wrong_size_is_named():
    with pytest.raises(UserError, match=r"\(4, 3, 8, 8\), not \(n, 3, 32, 32\)"):
        check_images(X, Y, 10, shape=(3, 32, 32))
