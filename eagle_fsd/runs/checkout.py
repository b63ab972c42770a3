"""The checkout that the library runs from; its path stays out of what is written."""

import os
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parent.parent.parent
Json = TypeVar("Json", str, list, dict, object)


def without_checkout(value: Json) -> Json:
    """The JSON-able value, the checkout's path cut off texts that name a place in it."""
    if isinstance(value, str):
        return value.replace(f"{ROOT}{os.sep}", "").replace(str(ROOT), ".")
    if isinstance(value, list | tuple):
        return [without_checkout(item) for item in value]
    if isinstance(value, dict):
        return {key: without_checkout(item) for key, item in value.items()}
    return value
