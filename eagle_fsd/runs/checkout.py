"""The checkout that the library runs from; its path stays out of what is written."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def without_checkout(values: dict) -> dict:
    """The values with the checkout's path cut off texts that name a place in it."""

    def cut(text: str) -> str:
        return text.replace(f"{ROOT}{os.sep}", "").replace(str(ROOT), ".")

    return {key: cut(value) if isinstance(value, str) else value for key, value in values.items()}
