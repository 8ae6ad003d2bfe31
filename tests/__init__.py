from importlib.metadata import version

HUNG_AFTER = 600  # seconds until a process is taken for hung; a busy machine needs a fraction of that


def installed_torch() -> tuple[int, int]:
    """Returns major and minor version of torch, for tests of what one release does."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)
