"""Which versions of torch and transformers are here, and which were tried: those in the ranges of
pyproject.toml, which the installed package's metadata repeat and nothing else does. How to try a
newer one: docs/extend.md.
"""

import re
from importlib.metadata import PackageNotFoundError, requires, version

FOLLOWED = ("transformers", "torch")  # whose inside this library knows


def tried_ranges() -> dict[str, str]:
    """Of each what pyproject.toml allows, such as ">=5.23,<5.25"; empty where the library runs
    from a folder that pip has not installed."""
    try:
        needed = requires("eagle_fsd") or []
    except PackageNotFoundError:
        return {}
    found = [re.fullmatch(r"([\w-]+)([<>=!~][^;]*)", line) for line in needed]
    ranges = {match[1]: match[2].strip() for match in found if match is not None}
    return {name: ranges[name] for name in FOLLOWED if name in ranges}


def told_versions() -> str:
    """For an error that another version may cause or mend.

    Example: "here are transformers 5.24.0 and torch 2.13.0; tried are transformers <5.25,>=5.23 and
    torch <2.15,>=2.13".
    """
    here = " and ".join(f"{name} {version(name)}" for name in FOLLOWED)
    tried = " and ".join(f"{name} {wanted}" for name, wanted in tried_ranges().items())
    return f"here are {here}; tried are {tried or 'those of its pyproject.toml'}"
