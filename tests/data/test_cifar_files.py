import os
import pickle

import numpy as np
import pytest

from pixelpart.data import cifar_files
from pixelpart.errors import UserError

DATA = np.arange(4 * 3072).astype(np.uint8).reshape(4, 3072)
LABELS = [3, 1, 4, 1]


def read(path, content):
    path.write_bytes(content)
    return cifar_files.read_rows(path, 4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "batch"


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("keys", [("data", "labels"), (b"data", b"labels")])
def test_a_pickled_batch_is_read_as_pickle_reads_it(path, protocol, keys):
    rows = read(path, pickle.dumps({keys[0]: DATA, keys[1]: LABELS}, protocol))
    assert rows[:, 0].tolist() == LABELS
    assert np.array_equal(rows[:, 1:], DATA)


def test_a_pickle_of_python_2_is_read(path):
    """Opcodes as Python 2's cPickle wrote them: strings and array content as str, numpy under its old name."""
    content = (
        b"\x80\x02}q\x00(U\x06labels]q\x01(K\x03K\x01K\x04K\x01eU\x04datacnumpy.core.multiarray\n_reconstruct\n"
        b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x04M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x30\x00\x00" + DATA.tobytes() + b"tbu."
    )
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], DATA)
    assert np.array_equal(read(path, content)[:, 1:], DATA)


def doubled(inner, times):
    for _ in range(times):
        inner = type(inner)([inner, inner])
    return inner


class Runs:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "hostile",
    [
        lambda mark: Runs(os.system, f"touch {mark}"),
        lambda mark: Runs(np.save, str(mark), 0),
        lambda mark: Runs(getattr, DATA, "tofile"),
    ],
)
def test_a_pickle_that_names_code_is_refused_and_nothing_runs(path, tmp_path, hostile):
    mark = tmp_path / "mark"
    with pytest.raises(UserError, match=r"it names "):
        read(path, pickle.dumps({"data": DATA, "labels": LABELS, "extra": hostile(mark)}))
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"not a pickle",
        pickle.dumps({"data": DATA, "labels": LABELS[:3]}),
        pickle.dumps({"data": DATA, "labels": [0, 1, 2, 300]}),
        pickle.dumps({"data": DATA, "labels": [0, 1, 2, True]}),
        pickle.dumps({"data": DATA, "labels": doubled([], 60)}),  # 2^60 lists, in a few bytes
        pickle.dumps({"data": np.asfortranarray(DATA), "labels": LABELS}),
    ],
)
def test_anything_else_is_a_user_error(path, content):
    with pytest.raises(UserError, match="not a pickled batch of 4 images"):
        read(path, content)
