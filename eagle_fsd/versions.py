"""Which versions of torch and transformers are here, and which were tried: those in the ranges of
pyproject.toml, which the installed package's metadata repeat and nothing else does. How to try a
newer one: docs/extend.md.
"""

import re
from importlib.metadata import PackageNotFoundError, requires, version


def told_versions() -> str:
    """For an error that another version may cause or mend.

    Example: "here are transformers 5.24.0 and torch 2.13.0; tried are torch<2.15,>=2.13 and
    transformers<5.25,>=5.23".
    """
    here = " and ".join(f"{name} {version(name)}" for name in ("transformers", "torch"))
    try:
        needed = requires("eagle_fsd") or []
    except PackageNotFoundError:  # it runs from a folder that pip has not installed
        needed = []
    tried = " and ".join(line for line in needed if re.match("(transformers|torch)[<>=]", line))
    return f"here are {here}; tried are {tried or 'those of its pyproject.toml'}"
