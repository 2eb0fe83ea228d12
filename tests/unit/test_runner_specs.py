import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.errors import ConfigError, TapfingerError
from tapfinger.evaluation.specs import describe_seeds, parse_seeds, parse_spec, parse_specs


def test_options_are_toml_and_bare_words_strings():
    spec = parse_spec(" x@a=1@b=2.5@c=true@d=word@e='q,@'@f=[1, 2] ")
    assert spec.text == "x@a=1@b=2.5@c=true@d=word@e='q,@'@f=[1, 2]"
    assert dict(spec.options) == {"a": 1, "b": 2.5, "c": True, "d": "word", "e": "q,@", "f": [1, 2]}


def test_commas_separate_schedulers_but_not_inside_lists():
    specs = parse_specs("min, my.mod:Mine@sizes=[1,2]@name='a,b',random@pending=3")
    assert [spec.name for spec in specs] == ["min", "my.mod:Mine", "random"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no scheduler"),
        (" , ", "no scheduler"),
        ("min,min", "twice"),
        ("@a=1", "no name"),
        ("min@pending", "option=value"),
        ("min@=1", "option=value"),
        ("min@a b=1", "option=value"),
        ("min@pending=1@pending=2", "twice"),
    ],
)
def test_bad_notations_are_named(text, word):
    with pytest.raises(ConfigError, match=word):
        parse_specs(text)


class Empty:
    pass


class Picky:
    def __init__(self, size):
        self.size = int(size)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("greedyy", "greedy"),
        ("min@pendin=3", "Did you mean 'pending'"),
        (f"{__name__}:Nothing", "has no 'Nothing'"),
        (f"{__name__}:Empty", "without one_shot, reset, decide"),
        (f"{__name__}:Picky@size=big", "cannot be made"),
        (f"{__name__}:Picky", "needs size"),
        ("no.such.module:X", "no module"),
    ],
)
def test_schedulers_that_cannot_be_made_are_named(text, word):
    with pytest.raises(TapfingerError, match=word):
        parse_spec(text).create()


@pytest.mark.parametrize(
    ("text", "seeds"), [("7", (7,)), ("3,1,2", (3, 1, 2)), ("0:4", (0, 1, 2, 3)), ("0:2, 10:12 ,5", (0, 1, 10, 11, 5))]
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "a", "1:", ":3", "3:1", "2:2", "-1", "1.5", "1,,2", "0:3,2", "0:1000000", "0:2:1"]
)
def test_nonsense_seeds_are_refused(text):
    with pytest.raises(ConfigError, match="seeds"):
        parse_seeds(text)


@given(st.lists(st.integers(0, 50), min_size=1, unique=True))
def test_seeds_are_described_as_they_are_read(seeds):
    assert parse_seeds(describe_seeds(tuple(seeds))) == tuple(seeds)
