from pixelpart.report.reading import read_run, read_runs
from pixelpart.report.table import columns, compare, finding, rows


def table(run):
    return [(row.entry.checkpoint, row.entry.epoch, row.eps, sorted(row.cells)) for row in rows(run)]


def test_natural_joins_the_attacked_row_of_the_same_weights_whatever_its_eps_and_seed(make_run, entry):
    run = read_run(
        make_run(entries=[entry("natural", eps=0.0, seed=0), entry("pgd20", seed=5), entry("pgd20", eps=4 / 255)])
    )
    assert table(run) == [
        ("best", 3, "eps 8/255", ["natural", "pgd20"]),
        ("best", 3, "eps 4/255", ["natural", "pgd20"]),
    ]


def test_checkpoints_have_rows_of_their_own_and_an_earlier_one_is_marked(make_run, entry):
    run = read_run(make_run(entries=[
        entry(), entry(checkpoint="last", epoch=2), entry("natural", checkpoint="last", epoch=3, weights="raw"),
    ]))  # fmt: skip
    found = rows(run)
    assert [(row.entry.checkpoint, row.entry.epoch, row.eps) for row in found] == [
        ("best", 3, "eps 8/255"), ("last", 2, "eps 8/255"), ("last", 3, "no attack"),
    ]  # fmt: skip
    assert [bool(row.remarks) for row in found] == [False, True, False]


def test_the_natural_figure_of_the_same_n_is_taken(make_run, entry):
    run = read_run(make_run(entries=[entry("natural", 0.5, n=64), entry("natural", 0.8, n=2000), entry("pgd20", n=64)]))
    (row,) = rows(run)
    assert row.cells["natural"].accuracy == 0.5


def test_a_second_figure_for_the_same_settings_replaces_the_first_with_a_note(make_run, entry):
    run = read_run(make_run(entries=[entry(accuracy=0.1), entry(accuracy=0.2)]))
    (row,) = rows(run)
    assert row.cells["pgd20"].accuracy == 0.2
    assert run.notes == ["eval.json: 1 older figure of the same settings is not shown"]


def test_columns_put_natural_first(make_run, entry):
    assert columns([read_run(make_run(entries=[entry("pgd20"), entry("pgd5"), entry("natural")]))]) == [
        "natural",
        "pgd20",
        "pgd5",
    ]


def test_touching_intervals_overlap_and_parted_ones_do_not(make_run, entry):
    runs = read_runs([
        make_run("a", entries=[entry(accuracy=0.5, interval=[0.45, 0.55])]),
        make_run("b", entries=[entry(accuracy=0.6, interval=[0.55, 0.65])]),
        make_run("c", entries=[entry(accuracy=0.7, interval=[0.651, 0.75])]),
    ])  # fmt: skip
    pairs = {(p.high[0], p.low[0]): p.overlap for p in compare([row for run in runs for row in rows(run)])}
    assert pairs == {("c", "b"): False, ("c", "a"): False, ("b", "a"): True}


def test_figures_of_different_eps_or_checkpoint_are_not_compared(make_run, entry):
    runs = read_runs([
        make_run("a", entries=[entry()]), make_run("b", entries=[entry(eps=4 / 255)]),
        make_run("c", entries=[entry(checkpoint="last")]),
    ])  # fmt: skip
    assert compare([row for run in runs for row in rows(run)]) == []


def test_the_finding_is_about_the_attack_that_costs_most(make_run, entry):
    run = read_run(make_run(entries=[entry("natural", 0.1), entry("pgd20", 0.4), entry("pgd100", 0.3)]))
    assert finding(rows(run)).replace("\u00a0", " ") == (
        "Under pgd100 at eps 8/255, the share of shapes test images classified right is 30.0 % for “part”."
    )
