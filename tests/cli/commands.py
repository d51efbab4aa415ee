"""What the tests of commands share: a command run in this process, and what it says."""

import re

from palaestra.cli import main


def words(text):
    """The text without the frames and line breaks that fit it to a terminal."""
    return " ".join(re.sub(r"[│╭╮╰╯─┃┏┓┗┛━┡┩╇┳┻┴└┘]", " ", text).split())


def run(capsys, *arguments):
    """Exit status, standard output and standard error of a command."""
    try:
        status = main([*map(str, arguments)])
    except SystemExit as stop:
        status = stop.code
    return (status, *capsys.readouterr())


def run_in_words(capsys, *arguments):
    """The same, with the words of both outputs."""
    status, *texts = run(capsys, *arguments)
    return (status, *map(words, texts))


def refused(capsys, said, *arguments):
    """A command is refused with these words and no traceback; all of its words."""
    status, out, err = run(capsys, *arguments)
    assert status == 2, out + err
    assert said in words(err + out)
    assert "Traceback" not in err
    return words(err)
