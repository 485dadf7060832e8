import copy
import functools

import pytest
import torch

from pixelpart import attacks, models
from pixelpart.evaluation.identity import agree, describe, hash_tensors, hash_weights, signature, sources_of
from pixelpart.evaluation.searching import under_searches


def test_weights_hash_differs_by_name_shape_type_and_value():
    base = torch.arange(6.0)
    variants = [("a", base), ("b", base), ("a", base.view(2, 3)), ("a", base.int()), ("a", base + 1)]
    assert len({hash_tensors([variant]) for variant in variants}) == len(variants)
    assert hash_tensors([("a", base)]) == hash_tensors([("a", base.clone())])


def test_weights_hash_sees_buffers_that_a_state_dict_leaves_out():
    plain, scaled = (models.build("tiny-cnn", mean=mean, std=(0.5,) * 3) for mean in ((0.4,) * 3, (0.5,) * 3))
    assert plain.state_dict().keys() == scaled.state_dict().keys()
    assert hash_weights(plain) != hash_weights(scaled)


def test_description_is_the_same_for_equal_models_and_another_for_another_network(net, plane):
    assert describe(net) == describe(type(net)().train())
    assert len({describe(model) for model in (net, plane, models.build("tiny-cnn"), models.build("resnet18"))}) == 4


class Holding(torch.nn.Module):
    """A network that has something else in it."""

    def __init__(self, held):
        super().__init__()
        self.linear, self.held = torch.nn.Linear(2, 2), held


class Thing:
    def __init__(self, value):
        self.value = value

    def method(self):
        return self.value


def enclosing(value):
    return lambda x: x + value


def with_default(value):
    def function(x, *, value=value):
        return x + value

    return function


def turning(value):
    """Things that hold each other."""
    thing = Thing(value)
    thing.back = lambda: thing
    return thing.back


TWO = (lambda x: x + 1), (lambda x: x + 2)


@pytest.mark.parametrize("hold", [
    enclosing, with_default, Thing, turning, lambda value: TWO[value], lambda value: Thing(value).method,
    lambda value: functools.partial(enclosing, value), lambda value: {"by": [value, Thing]},
    lambda value: torch.tensor(value), lambda value: enclosing(torch.full((2,), value)),
    lambda value: enclosing(torch.nn.Linear(2, 1 + value)), lambda value: enclosing(enclosing(value)),
])  # fmt: skip
def test_what_a_networks_functions_and_objects_hold_is_in_its_description(hold):
    torch.manual_seed(0)
    one, other = Holding(hold(0)), Holding(hold(1))
    assert describe(one) != describe(other)
    assert describe(one) == describe(copy.deepcopy(one))
    torch.manual_seed(0)
    assert describe(one) == describe(Holding(hold(0)))


def test_a_network_that_a_function_of_its_own_holds_is_described_once():
    networks = [Holding(value) for value in (0, 0, 1)]
    for network in networks:
        network.back = enclosing(network)
    one, same, other = map(describe, networks)
    assert one == same != other


def test_the_sources_of_an_attack_are_its_own_file_and_those_that_it_is_made_of():
    found = sources_of(attacks.mma)
    assert "def mma(" in found["function"]
    assert found.keys() >= {f"pixelpart.{name}" for name in ("attacks.pgd", "attacks.ball", "losses", "frozen")}
    assert "def climb(" in found["pixelpart.attacks.pgd"]
    assert not any("def mma(" in text for text in sources_of(attacks.pgd).values())  # another attack's file is its own


def test_the_sources_of_a_partial_function_are_the_functions_and_its_settings():
    one, two = (sources_of(functools.partial(attacks.pgd, loss=loss)) for loss in ("margin", "dlr"))
    assert one != two
    assert one.items() >= sources_of(attacks.pgd).items()


def test_neither_data_nor_networks_are_among_the_sources_of_an_attack():
    """Pixels, weights and the network's classes are in the key by themselves."""
    found = sources_of(under_searches)
    assert not [name for name in found if name.startswith(("pixelpart.data", "pixelpart.models"))]
    assert found.keys() >= {"pixelpart.attacks.batching", "pixelpart.attacks.fab", "pixelpart.evaluation.accuracy"}


def test_a_function_typed_at_a_prompt_has_sources_too():
    space = {}
    exec("def one(x): return x + 1\ndef two(x): return x + 2", space)
    assert sources_of(space["one"]) != sources_of(space["two"])


def test_signature_agrees_up_to_rounding_and_sees_every_class():
    logits = torch.randn(8, 10, generator=torch.Generator().manual_seed(0))
    base = signature(logits)
    assert agree(base, signature(logits * (1 + 1e-6)))
    assert not agree(base, signature(logits * 1.01))
    for k in range(10):
        other = logits.clone()
        other[0, k] += 0.01
        assert not agree(base, signature(other))
    assert not agree(base, signature(logits[:7]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_signature_that_is_not_finite_agrees_with_nothing(value):
    assert not agree([1.0, value], [1.0, 2.0])
    assert not agree([1.0, 2.0], [1.0, value])
