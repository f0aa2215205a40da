"""A number of tokens, as people write it."""

from fractions import Fraction

from streampipe.errors import ConfigError

_TOKEN_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_tokens(value: int | str, where: str) -> int:
    """Return a number of tokens; 1.5B is 1,500,000,000.

    Raises:
        ConfigError: for what is no number of tokens.
    """
    text = str(value).strip()
    unit = _TOKEN_UNITS.get(text[-1:].upper(), 1)
    try:
        tokens = int(Fraction(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"{where}: must be a number of tokens such as 10000000000 or 10B, but got {value!r}"
        ) from error
    if tokens < 0:
        raise ConfigError(f"{where}: must not be negative, but got {value!r}")
    return tokens
