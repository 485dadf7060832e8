"""Archives of torch.export give the logits and gradients of their model."""

import logging
import zipfile

import pytest
import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.evaluation.archive import load_archive
from pixelpart.evaluation.evaluate import evaluate

CPU = torch.device("cpu")
ANY = torch.export.Dim("batch")


@pytest.fixture
def export(tmp_path):
    def export(model, name="model.pt2", *, dim=ANY, inputs=1):
        x = torch.rand(4, 3, 6, 6)
        shapes = ({0: dim} if dim is not None else None,) * inputs
        program = torch.export.export(model, (x,) * inputs, dynamic_shapes=shapes)
        torch.export.save(program, tmp_path / name)
        return tmp_path / name

    return export


class Dropped(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(108, 5))


class Pair(nn.Module):
    def forward(self, a, b):
        return a.flatten(1) + b.flatten(1)


@pytest.mark.parametrize("n", [1, 7, 300])
def test_an_archive_gives_the_logits_and_gradients_of_its_model(n, net, export):
    archive = load_archive(export(net), device=CPU)
    x = torch.rand(n, 3, 6, 6, requires_grad=True)
    logits = archive(x)
    assert torch.allclose(logits, net(x), atol=1e-6)
    mine, theirs = (torch.autograd.grad(z.logsumexp(1).sum(), x)[0] for z in (logits, net(x)))
    assert torch.allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize("place", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_archive_is_loaded_on_the_requested_device(place, net, export):
    archive = load_archive(export(net), device=torch.device(place))
    assert {tensor.device.type for tensor in (*archive.parameters(), *archive.buffers())} == {place}
    logits = archive(torch.rand(7, 3, 6, 6, device=place))
    assert (logits.device.type, logits.shape) == (place, (7, 5))


def test_a_maximal_batch_size_is_respected(net, export):
    archive = load_archive(export(net, dim=torch.export.Dim("batch", max=16)), device=CPU)
    x = torch.rand(50, 3, 6, 6)
    assert torch.allclose(archive(x), net(x), atol=1e-6)


@pytest.mark.parametrize(
    ("dim", "count"), [(None, "4"), (2 * torch.export.Dim("half", min=1), r"2\*\w+")], ids=["fixed", "even"]
)
def test_an_archive_with_a_fixed_batch_size_is_refused(dim, count, net, export):
    with pytest.raises(UserError, match=rf"takes batches of {count} images, .* export it with dynamic_shapes="):
        load_archive(export(net, dim=dim), device=CPU)


@pytest.mark.parametrize(("case", "layer"), [("net", "batch_norm"), ("dropped", "dropout")])
def test_an_archive_of_a_model_in_train_mode_is_refused(case, layer, net, export):
    model = (net if case == "net" else Dropped()).train()
    with pytest.raises(UserError, match=rf"exported in train mode \({layer}\); call eval\(\)"):
        load_archive(export(model), device=CPU)
    load_archive(export(model.eval()), device=CPU)


def test_an_archive_with_a_second_input_is_refused(export):
    with pytest.raises(UserError, match="does not take images"):
        load_archive(export(Pair(), inputs=2), device=CPU)


def test_a_file_that_is_not_an_archive_is_refused_in_one_line(net, export, tmp_path, monkeypatch):
    whole = export(net).read_bytes()
    bad = tmp_path / "bad.pt2"
    torch.save(net.state_dict(), tmp_path / "weights.pt2")
    with zipfile.ZipFile(tmp_path / "zip.pt2", "w") as file:
        file.writestr("a", "b")
    level, records = logging.root.manager.disable, []
    monkeypatch.setattr(logging.getLogger("torch.export"), "handle", records.append)
    contents = [b"", b"text", whole[:-300], whole[: len(whole) // 2]]
    contents += [(tmp_path / name).read_bytes() for name in ("weights.pt2", "zip.pt2")]
    for content in contents:
        bad.write_bytes(content)
        with pytest.raises(UserError, match=r"bad\.pt2 is corrupt, or not an archive of torch\.export\.save") as caught:
            load_archive(bad, device=CPU)
        assert len(str(caught.value).splitlines()) == 1
    assert records == []
    assert logging.root.manager.disable == level
    with pytest.raises(UserError, match="no file"):
        load_archive(tmp_path / "nothing.pt2", device=CPU)


def test_a_flipped_bit_in_a_weight_is_refused(net, export):
    path = export(net)
    weights = next(parameter for parameter in net.parameters()).detach().numpy().tobytes()[:16]
    content = bytearray(path.read_bytes())
    assert content.count(weights) == 1
    content[content.index(weights)] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is corrupt"):
        load_archive(path, device=CPU)


def test_an_archive_is_evaluated_like_its_model(net, pair, export, tmp_path):
    settings = {"attacks": ["natural", "pgd3", "mma3"], "eps": 0.03, "data": pair}
    path = str(export(net))
    mine, theirs = evaluate(path, out=tmp_path / "out", name="archive", **settings), evaluate(net, **settings)
    assert {name: flags.tolist() for name, flags in mine.flags.items()} == {
        name: flags.tolist() for name, flags in theirs.flags.items()
    }
    assert mine["pgd3"].entry["subject"] == "archive"
    assert 0 < mine["pgd3"].correct < mine["natural"].correct
    again = evaluate(path, out=tmp_path / "out", name="archive", **settings)
    assert all(again[name].reused for name in again)
    assert again.entries == mine.entries


def test_images_of_another_size_are_reported(net, export, pair):
    x, y = pair
    with pytest.raises(UserError, match=r"the model on images of shape \(8, 3, 5, 6\) fails with"):
        evaluate(export(net), data=(x[:, :, 1:], y))
