"""What an attack is called, what its outcome depends on, and that one question is not taken for another."""

import itertools

import pytest

from pixelpart.attacks import ATTACKS, SEARCHES, VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.errors import UserError
from pixelpart.evaluation import attack_spec, identity
from pixelpart.evaluation.attack_spec import AUTOATTACKS, ENGINES, choices, facts_of, parse_attack, source_of

NAMES = ["natural", "pgd20", "pgd20x5", "mma20", *SEARCHES, *AUTOATTACKS]
LIMITS = {"eps": 0.03, "step_size": 0.01, "seed": 4, "search": "fp32", "engine": "own"}


def question(name, **changes):
    """The hash of all that an outcome depends on besides model and images."""
    limits = LIMITS | changes
    attack = parse_attack(name)
    return identity.digest([facts_of(attack, **limits), source_of(attack, engine=limits["engine"])])


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_goes_by_its_name_and_is_its_only_part(name):
    attack = parse_attack(name)
    assert (attack.name, attack.kind) == (name, name)
    assert attack.parts == {name: SEARCHES[name]}


@pytest.mark.parametrize(("name", "version"), [("autoattack", "standard"), ("autoattack-plus", "plus")])
def test_autoattack_is_made_of_its_versions_parts_in_their_order(name, version):
    attack = parse_attack(name)
    assert attack.kind == "autoattack"
    assert list(attack.parts.items()) == list(VERSIONS[version].items())


@pytest.mark.parametrize(
    "name",
    ["autoattack5", "autoattack-", "AutoAttack", "apgd", "apgd-ce20", "fab-tx2", "standard", "plus", "square100"],
)
def test_what_is_like_a_name_is_none(name):
    with pytest.raises(UserError, match=f"unknown attack '{name}'; choose from natural, "):
        parse_attack(name)


@pytest.mark.parametrize("name", [None, 5, 2.5, ("pgd20",), b"pgd20"])
def test_what_is_no_string_is_an_unknown_attack(name):
    with pytest.raises(UserError, match="unknown attack"):
        parse_attack(name)


def test_all_that_may_be_asked_for_is_told():
    told = choices()
    for name in ("natural", *SEARCHES, *AUTOATTACKS, *(f"{kind}K" for kind in ATTACKS)):
        assert name in told


def test_no_name_stands_for_two_things():
    names = [*SEARCHES, *AUTOATTACKS, "natural", *ATTACKS]
    assert len(set(names)) == len(names)


# -- facts


def test_nothing_that_was_set_changes_natural():
    facts = [
        facts_of(parse_attack("natural"), **LIMITS | change)
        for change in ({}, {"eps": 0.5}, {"seed": 9}, {"engine": "reference"}, {"search": "bf16"})
    ]
    assert all(fact == facts[0] for fact in facts)
    assert facts[0]["settings"] == {}


def test_the_facts_of_a_search_are_its_own_counts_and_no_step_size():
    facts = facts_of(parse_attack("apgd-t"), **LIMITS)
    assert facts["settings"] == {
        "engine": "own",
        "search": "fp32",
        "parts": {"apgd-t": {"steps": 101, "targets": 9, "restarts": 1}},
    }
    assert (facts["kind"], facts["eps"], facts["seed"]) == ("apgd-t", 0.03, 4)


def test_the_facts_of_pgd_are_as_they_were_before_there_were_engines():
    facts = facts_of(parse_attack("pgd20x5"), **LIMITS)
    assert facts["settings"] == {"steps": 20, "step_size": 0.01, "restarts": 5}


@pytest.mark.parametrize("name", AUTOATTACKS)
def test_the_reference_searches_in_fp32(name):
    settings = facts_of(parse_attack(name), **LIMITS | {"engine": "reference", "search": "bf16"})["settings"]
    assert (settings["engine"], settings["search"]) == ("reference", "fp32")


@pytest.mark.parametrize("name", SEARCHES)
def test_the_reference_runs_no_part_alone(name):
    with pytest.raises(UserError, match=f"runs autoattack, autoattack-plus alone, not {name}"):
        facts_of(parse_attack(name), **LIMITS | {"engine": "reference"})


# -- questions


def test_no_two_attacks_are_one_question():
    hashes = {name: question(name) for name in NAMES}
    assert len(set(hashes.values())) == len(hashes)


@pytest.mark.parametrize("name", ["autoattack", "apgd-ce", "square", "autoattack-plus"])
def test_each_setting_of_a_search_makes_another_question(name):
    changes = [{}, {"eps": 0.04}, {"seed": 5}, {"search": "bf16"}]
    hashes = [question(name, **change) for change in changes]
    assert len(set(hashes)) == len(changes)
    assert question(name, step_size=0.02) == hashes[0]  # it has none


def test_each_engine_is_asked_a_question_of_its_own():
    assert ENGINES == ("own", "reference")
    assert question("autoattack") != question("autoattack", engine="reference")
    assert question("autoattack", engine="reference", search="bf16") == question("autoattack", engine="reference")


@pytest.mark.parametrize(("name", "version"), AUTOATTACKS.items())
def test_both_engines_run_the_same_searches(name, version):
    own, reference = (
        list(facts_of(parse_attack(name), **LIMITS | {"engine": engine})["settings"]["parts"]) for engine in ENGINES
    )
    assert own == reference == list(VERSIONS[version])


def test_another_make_of_a_part_is_another_question(monkeypatch):
    first = question("autoattack")
    seen = {first}
    for steps, targets, restarts in itertools.product((50, 100), (3, 9), (1, 2)):
        part = apgd_search(steps=steps, targets=targets, restarts=restarts)
        monkeypatch.setitem(VERSIONS, "standard", VERSIONS["standard"] | {"apgd-t": part})
        seen.add(question("autoattack"))
    assert len(seen) == 8
    monkeypatch.setitem(VERSIONS, "standard", {"apgd-ce": VERSIONS["standard"]["apgd-ce"]})
    assert question("autoattack") not in seen


def files_in(sources):
    """The names of pixelpart's files whose text a question holds."""
    return {name for item in sources if isinstance(item, dict) for name in item}


@pytest.mark.parametrize("name", ["autoattack", *SEARCHES])
def test_the_text_of_every_file_that_a_search_is_made_of_is_in_its_question(name):
    needed = {"attacks.sweep", "attacks.search", "attacks.apgd", "attacks.fab", "attacks.square", "attacks.ball"}
    needed |= {"attacks.mm3", "draws", "losses", "frozen", "precision", "graphs", "fusing"}
    assert {f"pixelpart.{file}" for file in needed} <= files_in(source_of(parse_attack(name)))


def test_another_release_of_the_reference_is_another_question_and_none_for_our_own(monkeypatch):
    before = question("autoattack", engine="reference"), question("autoattack")
    monkeypatch.setattr(attack_spec, "release", lambda: "0.3.0")
    assert question("autoattack", engine="reference") != before[0]
    assert question("autoattack") == before[1]


def test_the_file_that_runs_the_reference_is_in_its_question():
    sources = source_of(parse_attack("autoattack"), engine="reference")
    assert any("run_standard_evaluation" in item["function"] for item in sources if "function" in item)


def test_the_release_of_the_reference_is_that_of_the_package():
    pytest.importorskip("pyautoattack")
    assert attack_spec.release() == "0.2.0"
