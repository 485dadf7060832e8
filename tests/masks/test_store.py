import pytest
import torch

from pixelpart import masks


def test_maps_come_back_by_sample_number_whatever_the_order() -> None:
    maps = torch.arange(6 * 4.0).view(6, 2, 2)
    store = masks.MaskStore(6, (2, 2))
    for index in (torch.tensor([4, 1, 3]), torch.tensor([5, 0])):
        store.put(index, maps[index])
    index = torch.tensor([0, 3, 1, 5, 3])
    assert torch.equal(store.get(index), maps[index])
    assert (store.get(torch.tensor([2])) == 0).all()


def test_a_sample_never_put_gets_eps_everywhere() -> None:
    heat = masks.upscale(masks.MaskStore(3, (4, 4)).get(torch.tensor([1])), (8, 8))
    assert masks.dead(heat).all()
    assert (masks.budget(heat, eps=0.5, eps_low=0.25) == 0.5).all()


def test_a_new_map_replaces_the_old_one_in_place() -> None:
    store = masks.MaskStore(3, (2, 2))
    address = store.maps.data_ptr()
    for value in (1.0, 2.0):
        store.put(torch.tensor([2]), torch.full((1, 2, 2), value))
    assert store.maps[2].tolist() == [[2, 2], [2, 2]]
    assert (store.maps[:2] == 0).all()
    assert store.maps.data_ptr() == address


def test_what_is_kept_is_float32_and_a_copy() -> None:
    store = masks.MaskStore(2, (2, 2))
    cam = torch.ones(1, 2, 2, dtype=torch.float64, requires_grad=True)
    store.put(torch.tensor([0]), cam)
    assert store.maps.dtype == torch.float32
    assert not store.maps.requires_grad
    got = store.get(torch.tensor([0]))
    got.zero_()
    assert (store.maps[0] == 1).all()


def test_a_number_outside_is_an_error() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        masks.MaskStore(2, (2, 2)).get(torch.tensor([2]))
