"""No option of a build is accepted and ignored; what was not given is never refused."""

import pytest

SMALL = ("--shard-tokens", 8_000, "--frame-tokens", 1_000)
SHARD = ("--shuffle", "shard")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--validation-min", 1), "--validation-min has no meaning without --validation"),
        (("--ray-address", "auto"), "--ray-address has no meaning with --engine local"),
        (("--scratch", "elsewhere", *SHARD), "--scratch has no meaning with --shuffle shard"),
        (("--give-up-after", -1), "--give-up-after must be at least 0 seconds, but got -1"),
        (("--give-up-after", "nan"), "--give-up-after must be at least 0 seconds, but got nan"),
        (("--frame-tokens", 100, "--shard-tokens", 50), "--frame-tokens 100 is more than --shard-tokens 50"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_and_its_default_is_not(build, corpus, capsys, *, options, says):
    folder = build(corpus, *options, code=2)
    assert says in capsys.readouterr().err
    assert not folder.exists()
    if options[0] != "--give-up-after":
        build(corpus, *options[2:])


def test_scratch_is_taken_where_it_counts_and_given_defaults_make_the_same_build(build, corpus, contents, tmp_path):
    plain = contents(build(corpus, *SMALL, output=tmp_path / "plain"))
    given = ("--seed", 0, "--level", 3, "--give-up-after", 0, "--scratch", tmp_path / "scratch")
    assert contents(build(corpus, *SMALL, *given, output=tmp_path / "given")) == plain
    for shuffle, more in (("shard", ("--validation", 9, "--validation-min", 1)), ("none", ("--dedup", "exact"))):
        build(corpus, "--shuffle", shuffle, *more, "--scratch", tmp_path / "scratch", output=tmp_path / shuffle)
