from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pixelpart.data import Loader, as_float, split_holdout
from pixelpart.errors import UserError
from pixelpart.runtime.world import World

N = 53


@pytest.fixture
def pair():
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (N, 3, 4, 4), generator=g, dtype=torch.uint8), torch.arange(N) % 10


def loader(pair, **kwargs):
    return Loader(*pair, **{"batch_size": 10, "seed": 1, "device": "cpu"} | kwargs)


def test_an_epoch_has_every_image_once_and_a_smaller_last_batch(pair):
    batches = [loader(pair).batch(0, step) for step in range(loader(pair).steps)]
    assert [len(batch.index) for batch in batches] == [10, 10, 10, 10, 10, 3]
    assert sorted(torch.cat([batch.index for batch in batches]).tolist()) == list(range(N))


def test_pixels_labels_and_numbers_belong_together(pair):
    images, labels = pair
    batch = loader(pair).batch(2, 3)
    for row, number in enumerate(batch.index.tolist()):
        assert torch.equal(batch.images[row], images[number].float() / 255)
        assert batch.labels[row] == labels[number]
    assert batch.images.dtype == torch.float32


def test_batches_do_not_depend_on_earlier_calls(pair):
    straight = loader(pair)
    seen = {(epoch, step): straight.batch(epoch, step).index for epoch in range(3) for step in range(straight.steps)}
    fresh = loader(pair)
    for key in [(2, 5), (0, 0), (1, 3), (2, 0), (0, 5)]:
        assert torch.equal(fresh.batch(*key).index, seen[key])


def test_the_order_depends_only_on_seed_and_epoch(pair):
    order = loader(pair).order(0)
    torch.manual_seed(99)
    assert torch.equal(loader(pair, batch_size=7).order(0), order)
    assert not torch.equal(loader(pair).order(1), order)
    assert not torch.equal(loader(pair, seed=2).order(0), order)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_slices_of_all_ranks_are_the_global_batch(pair, size):
    single = loader(pair)
    ranks = [loader(pair, world=World(rank, size)) for rank in range(size)]
    for step in range(single.steps):
        shares = [rank.batch(1, step) for rank in ranks]
        whole = single.batch(1, step)
        if len(whole.index) < 2 * size - 1:  # too few for a slice each: every rank has all
            assert all(torch.equal(share.index, whole.index) for share in shares)
            continue
        assert torch.equal(torch.cat([share.index for share in shares]), whole.index)
        assert torch.equal(torch.cat([share.images for share in shares]), whole.images)
        assert single.global_size(step) == len(whole.index)


def test_pixel_level_k_becomes_k_over_255():
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert as_float(levels).flatten().tolist() == [torch.tensor(k / 255).item() for k in range(256)]
    assert levels.flatten().tolist() == list(range(256))


def test_a_holdout_is_disjoint_sorted_and_determined_by_the_seed():
    train, held = split_holdout(1000, 128, 7)
    assert len(held) == 128
    assert sorted(train.tolist() + held.tolist()) == list(range(1000))
    assert train.tolist() == sorted(train.tolist())
    assert held.tolist() == sorted(held.tolist())
    assert torch.equal(split_holdout(1000, 128, 7)[1], held)
    assert not torch.equal(split_holdout(1000, 128, 8)[1], held)


def test_a_holdout_of_nothing_is_allowed_and_of_everything_is_refused():
    train, held = split_holdout(10, 0, 0)
    assert train.tolist() == list(range(10))
    assert len(held) == 0
    for bad in (10, -1):
        with pytest.raises(UserError, match=f"hold out {bad} of 10"):
            split_holdout(10, bad, 0)


# -- mapped files


@pytest.fixture
def mapped(pair, tmp_path):
    np.save(tmp_path / "x.npy", pair[0].numpy())
    return torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c")), pair[1]


def test_rows_of_a_mapped_file_equal_a_copy_of_these_rows(pair, mapped):
    rows = torch.tensor([50, 3, 7, 8, 9, 20, 21, 22, 23, 40, 41])
    copied, chosen = loader((pair[0][rows], pair[1][rows])), loader(mapped, rows=rows)
    assert len(chosen) == len(copied) == 11
    assert chosen.steps == copied.steps
    for step in range(copied.steps):
        a, b = copied.batch(3, step), chosen.batch(3, step)
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.index, b.index)
    images, labels = chosen.take(torch.tensor([0, 10]))
    assert torch.equal(images, pair[0][[50, 41]])
    assert labels.tolist() == pair[1][[50, 41]].tolist()


def test_batches_gathered_by_the_thread_are_the_same(pair):
    plain, ahead = loader(pair), loader(pair)
    with ThreadPoolExecutor(1) as thread:
        ahead._thread = thread  # as for images that do not fit on a GPU
        for epoch, step in [(0, 0), (0, 1), (0, 5), (1, 0), (1, 1), (0, 3), (0, 4), (0, 5), (0, 0)]:
            a, b = plain.batch(epoch, step), ahead.batch(epoch, step)
            assert torch.equal(a.images, b.images)
            assert torch.equal(a.index, b.index)
