"""No option of a build is accepted and ignored; what was not given is never refused."""

import pytest

SMALL = ("--shard-tokens", 8_000, "--frame-tokens", 1_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--validation-min", 1), "--validation-min has no meaning without --validation"),
        (("--ray-address", "auto"), "--ray-address has no meaning with --engine local"),
        (("--give-up-after", -1), "--give-up-after must be at least 0 seconds, but got -1"),
        (("--give-up-after", "nan"), "--give-up-after must be at least 0 seconds, but got nan"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_and_its_default_is_not(build, corpus, capsys, *, options, says):
    folder = build(corpus, *options, code=2)
    assert says in capsys.readouterr().err
    assert not folder.exists()
    if options[0] != "--give-up-after":
        build(corpus, *options[2:])


def test_what_scripts_always_give_makes_the_same_build(build, corpus, contents, tmp_path):
    plain = contents(build(corpus, *SMALL, output=tmp_path / "plain"))
    given = ("--seed", 0, "--level", 3, "--give-up-after", 0, "--scratch", tmp_path / "scratch")
    assert contents(build(corpus, *SMALL, *given, output=tmp_path / "given")) == plain
    given = ("--shuffle", "none", "--compression", "none")
    plain = contents(build(corpus, *SMALL[:2], *given, output=tmp_path / "plain, none"))
    given += ("--seed", 0, "--level", 3, "--frame-tokens", 65_536, "--scratch", tmp_path / "scratch")
    assert contents(build(corpus, *SMALL[:2], *given, output=tmp_path / "given, none")) == plain
