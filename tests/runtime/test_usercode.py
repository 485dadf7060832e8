"""`module:function`: user code from the working folder, with a one-line error for everything that can go wrong."""

import sys
import textwrap

import pytest
import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.evaluation.target import make_model
from pixelpart.runtime.usercode import parse_name

CPU = torch.device("cpu")
GOOD = """
    from torch import nn

    def linear():
        print("building")
        return nn.Sequential(nn.Flatten(), nn.Linear(108, 5))
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module into the working folder."""
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)

    def write(text, name="own_models"):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))

    yield write
    for name in set(sys.modules) - known:
        if name.startswith("own_"):
            del sys.modules[name]


def mistake(name, message):
    with pytest.raises(UserError, match=message) as caught:
        make_model(name, device=CPU)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_function_in_the_working_folder_makes_the_model(write):
    write(GOOD)
    model = make_model("own_models:linear", device=CPU)
    assert model(torch.rand(2, 3, 6, 6)).shape == (2, 5)


def test_sys_path_is_restored_also_after_a_failure(write):
    write(GOOD + "    import nothing_of_that_name")
    before = list(sys.path)
    mistake("own_models:linear", "No module named 'nothing_of_that_name'")
    assert sys.path == before
    write(GOOD, "own_others")
    make_model("own_others:linear", device=CPU)
    assert sys.path == before


def test_a_function_may_import_from_the_folder_when_it_is_called(write):
    write("def make():\n    import own_late\n    return own_late.linear()")
    write(GOOD, "own_late")
    assert isinstance(make_model("own_models:make", device=CPU), nn.Module)


def test_what_user_code_prints_goes_to_stderr(write, capsys):
    write(GOOD)
    make_model("own_models:linear", device=CPU)
    assert capsys.readouterr() == ("", "building\n")


def test_a_function_with_a_device_parameter_gets_the_device(write):
    write("""
        from torch import nn
        told = []
        def make(scale=1, *, device=None):
            told.append(device)
            return nn.Flatten()
    """)
    make_model("own_models:make", device=CPU)
    assert sys.modules["own_models"].told == [CPU]


@pytest.mark.parametrize(
    ("parameters", "expected"), [("num_classes", 7), ("num_classes=3", 3), ("device, num_classes", 7)]
)
def test_a_function_that_requires_the_number_of_classes_gets_that_of_the_data(write, parameters, expected):
    write(f"""
        from torch import nn
        def make({parameters}):
            return nn.Linear(2, num_classes)
    """)
    assert make_model("own_models:make", device=CPU, num_classes=7).out_features == expected


def test_a_class_or_an_nn_module_is_accepted(write):
    write("from torch import nn\nclass Net(nn.Flatten): pass\nready = Net()")
    assert type(make_model("own_models:Net", device=CPU)).__name__ == "Net"
    assert make_model("own_models:ready", device=CPU) is sys.modules["own_models"].ready


@pytest.mark.parametrize(
    "name", ["mymodels.py:make", "models/mine:make", "mine:make()", ":make", "mine:", "mine:a:b", "a-b:c"]
)
def test_a_malformed_name_is_refused(name):
    with pytest.raises(UserError, match="is not module:function; write mymodels:robust"):
        parse_name(name)


def test_a_missing_module_and_a_missing_dependency_have_different_messages(write):
    mistake("own_nowhere:make", "no module 'own_nowhere', neither in this folder")
    write(GOOD, "own_package.inner")
    mistake("own_package.outer:make", "no module 'own_package.outer'")
    write("import own_missing\n")
    told = mistake("own_models:make", "own_models fails with ModuleNotFoundError: No module named 'own_missing'")
    assert told.endswith("(own_models.py:1)")


def test_an_unknown_function_is_reported_with_similar_names(write):
    write(GOOD + "    def other(): pass")
    assert mistake("own_models:liner", "own_models has no 'liner'; did you mean").endswith("did you mean linear?")
    mistake("own_models:xyz", "own_models has no 'xyz'; it has: linear, other$")
    write("", "own_empty")
    mistake("own_empty:xyz", "it has: no function")


def test_a_value_or_a_function_without_a_module_is_refused(write):
    write("three = 3\ndef four(): return 4\ndef nothing(): pass")
    mistake("own_models:three", "own_models:three is a int; name a function")
    mistake("own_models:four", "own_models:four returned a int; it must return an nn.Module on")
    mistake("own_models:nothing", "returned a NoneType")


def test_a_function_that_needs_arguments_is_refused_before_it_is_called(write):
    write("def make(path, device): raise SystemError")
    mistake("own_models:make", "with at most device and num_classes of a data set given by name: missing .* 'path'")


FAILURES = {
    "an error": ("raise ValueError('no weights\\n  here')", "ValueError: no weights here", 3),
    "no words": ("raise KeyError", "KeyError", 3),
    "an exit": ("sys.exit(0)", "SystemExit: 0", 3),
    "in a library": ("nn.Linear(2, 2).load_state_dict({})", "RuntimeError: Error\\(s\\) in loading state_dict", 3),
}


@pytest.mark.parametrize("case", FAILURES)
def test_an_exception_in_the_function_is_reported_in_one_line_with_file_and_line(case, write):
    line, message, number = FAILURES[case]
    write(f"import sys; from torch import nn\ndef make():\n    {line}")
    assert mistake("own_models:make", f"own_models:make fails with {message}").endswith(f"(own_models.py:{number})")


@pytest.mark.parametrize("line", ["1 / 0", "sys.exit()", "def broken(:"])
def test_an_exception_in_the_module_is_reported_too(line, write):
    write(f"import sys\n{line}")
    kind = {"1 / 0": "ZeroDivisionError", "sys.exit()": "SystemExit"}.get(line, "SyntaxError")
    assert mistake("own_models:make", f"own_models fails with {kind}").endswith("(own_models.py:2)")
