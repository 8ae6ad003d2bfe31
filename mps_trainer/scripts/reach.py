"""Checks once and quickly if the hub can be reached."""

from __future__ import annotations

import os
import urllib.error
import urllib.request

TIMEOUT = 3.0  # seconds


def go_offline_if_unreachable() -> bool:
    """Makes the hub's libraries use only their caches if the hub does not answer. Returns True in that case.

    They would otherwise try again and again, for a minute and more, before they say so. An answer with an error
    status is an answer. The libraries read the switch when they are imported, so `datasets` must not be yet.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            return False
    except urllib.error.HTTPError:
        return False
    except (OSError, ValueError):
        pass
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    import huggingface_hub.constants

    huggingface_hub.constants.HF_HUB_OFFLINE = True  # imported with the argument parser, before this was known
    return True
