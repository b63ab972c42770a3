"""Commands as modules, for tests that call their main in this process."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def load_command(path: str):
    """A command's module; commands do nothing on import."""
    spec = importlib.util.spec_from_file_location(f"command_{Path(path).stem}", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
