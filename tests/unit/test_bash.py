"""Reading assignments of bash without bash: the same values as bash has, and no guess where it cannot know."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet import bash
from fleet.bash import BashError, Unread, Value

KNOWN = {"HOME": "/home/anna", "ROOT": "/srv/launcher"}


def values(text: str) -> dict[str, str]:
    return {name: value.text for name, value in bash.read(text, KNOWN).values.items()}


def unread(text: str) -> tuple[Unread, ...]:
    return bash.read(text, KNOWN).unread


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ('"two words"', "two words"),
        ("'$HOME and \"more\"'", '$HOME and "more"'),
        ('"$HOME/models"', "/home/anna/models"),
        ("${HOME}x", "/home/annax"),
        ("~/models", "/home/anna/models"),
        ("a:~", "a:/home/anna"),
        ('"~"', "~"),
        (r"a\ b\"c", 'a b"c'),
        (r'"a\"b\$c\d"', r'a"b$c\d'),
        ("one'two'\"three\"", "onetwothree"),
        ("a#b # comment", "a#b"),
        ("^LL128", "^LL128"),
        ('"over\\\nlines"', "overlines"),
        ('"over\nlines"', "over\nlines"),
        ("${NOPE:-other$ROOT}", "other/srv/launcher"),
        ("${HOME:-other}", "/home/anna"),
        ("${NOPE-}", ""),
        ('"costs 5$"', "costs 5$"),
    ],
)
def test_a_value_is_what_bash_has(word: str, text: str) -> None:
    assert values(f"A={word}\nB=after") == {"A": text, "B": "after"}


def test_later_lines_see_earlier_ones_and_the_last_counts() -> None:
    text = "A=1\nexport B=$A C=${A}2 # two\nA=3; D=$A\nA+=4\nexport A D\nset -a\n"
    assert bash.read(text, KNOWN) == bash.Script(
        {"A": Value("34", 4), "B": Value("1", 2), "C": Value("12", 2), "D": Value("3", 3)}, (), carriage_returns=False
    )


def test_export_sees_all_of_its_words_before_it_sets_any() -> None:
    assert values("A=1\nexport A=2 A+=3 B=$A\nC=4 D=$C\n") == {"A": "23", "B": "1", "C": "4", "D": "4"}


def test_a_value_over_lines_has_the_line_that_it_begins_on() -> None:
    assert bash.read("\nA='x\ny'\nB=1", KNOWN).values == {"A": Value("x\ny", 2), "B": Value("1", 4)}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("A=$(cat key)", "the output of a command"),
        ('A="`cat key`"', "the output of a command"),
        ("A=$((1 + 2))", "the output of a command"),
        ("A=(1 2)", "a list"),
        ("A=$'x'", "a quote that begins with `$`"),
        ("A=$1", "`$1`"),
        ("A=~bob/x", "somebody's home, `~name`"),
        ("A=${HOME%/*}", "an expansion other than `${NAME}` and `${NAME:-other}`"),
        ("A=$HOME\\\nX=1", "a name that may go on in the next line"),
        ("A=$OTHER", "`$OTHER`, which is not known here"),
        ("A=x && B=y", "a command with `&`"),
        ("A=1 true", "a command behind a value; blanks in a value need quotes"),
        ("A=two words", "a command behind a value; blanks in a value need quotes"),
        ("source A=x.env", "a command"),
        ("declare A=1", "a command"),
    ],
)
def test_what_is_not_an_assignment_is_told_and_what_it_may_set_is_unknown(text: str, what: str) -> None:
    script = bash.read(f"A=before\n{text}\nC=after", KNOWN)
    assert [(one.line, one.what) for one in script.unread] == [(2, what)]
    assert script.unread[0].names[0] == "A"
    assert {name: value.text for name, value in script.values.items()} == {"C": "after"}


def test_nothing_inside_of_a_condition_loop_or_function_is_taken_for_granted() -> None:
    text = "if [ -f x ]; then\n  A=1\nfi\nfor i in 1; do A=2; done\nf() {\n  B=2\n}\nC=3\n"
    assert values(text) == {"C": "3"}
    assert {name for one in unread(text) for name in one.names} == {"A", "B"}


def test_nothing_behind_a_here_document_is_read() -> None:
    text = "A=1\ncat <<EOF\nB=2\nEOF\nC=3\n"
    assert values(text) == {"A": "1"}
    assert "a here-document: nothing behind it was read" in {one.what for one in unread(text)}


def test_a_word_that_may_be_a_secret_is_not_told() -> None:
    assert all("hunter2" not in one.what for one in unread("API_KEY=my hunter2\nhunter2\nA=1 hunter2 x\n"))


@pytest.mark.parametrize("text", ["A='x\n", 'B=1\nA="x', "cat 'x\n", 'cat "x\n'])
def test_a_quote_without_an_end_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(BashError, match=f"line {text.count('B=1') + 1}: a quote is never closed"):
        bash.read(text, KNOWN)


@pytest.mark.parametrize("text", ["A=1\n;", "A=1;; B=2"])
def test_a_semicolon_behind_nothing_is_an_error_as_in_bash(text: str) -> None:
    with pytest.raises(BashError, match="nothing stands before the `;`"):
        bash.read(text, KNOWN)


def test_lines_of_windows_are_read_without_their_carriage_return() -> None:
    script = bash.read("A=1\r\nB='2'\r\n", KNOWN)
    assert script.carriage_returns
    assert {name: value.text for name, value in script.values.items()} == {"A": "1", "B": "2"}


PIECES = [*"""x y2 ' " \\ $A ${B} ${C:-d} ${A-} # ~ ~/ : = / ;""".split(), " ", "\t", "\n"]
PRINTED = '. /dev/stdin; printf "%s\\0" "$A" "$B" "$C"'
WORDS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["A=", "B=", "export C=", "A+=", "# "]), WORDS), min_size=1, max_size=4))
def test_whatever_is_read_is_what_bash_would_have(lines: list[tuple[str, str]]) -> None:
    text = "A=1\nB=2\n" + "".join(f"{name}{word}\n" for name, word in lines)
    try:
        script = bash.read(text, {"HOME": KNOWN["HOME"]})
    except BashError:
        return
    real = subprocess.run(
        [str(shutil.which("bash")), "--noprofile", "--norc", "-c", PRINTED],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": KNOWN["HOME"], "PATH": "/nonexistent"},
    )
    commands = [one for one in script.unread if one.what.startswith("a command")]
    if commands or "syntax error" in real.stderr:
        return  # a command may set anything, and of a wrong line, or of its file, bash had nothing
    for name, value in zip("ABC", real.stdout.split("\0"), strict=False):
        if name in script.values:
            assert script.values[name].text == value, (text, name)
