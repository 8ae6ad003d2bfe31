"""Loads the model: a small ResNet with random weights, or one from a folder or the hub."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from cv_arguments import ImageArguments
from cv_pixels import Settings

from mps_trainer import MisconfigurationException
from mps_trainer.scripts.loading import (
    errors_about,
    reports_kept_back,
    require_folder_or_name,
    require_own_weights,
    straight_to_device,
)
from mps_trainer.scripts.reach import go_offline_if_unreachable
from mps_trainer.utils.text import sentence

SMALL = {
    "embedding_size": 32,
    "hidden_sizes": [32, 64, 128],
    "depths": [1, 1, 1],
    "layer_type": "basic",
}
# Those of ImageNet, with which nearly every model of photographs was trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
INSTEAD = (
    "Give --model_name_or_path a folder with config.json and weights of a model of images, a name on a hub that can "
    "be reached, or leave it out for a small ResNet."
)

logger = logging.getLogger("mps_trainer.examples")


def load_model(image_args: ImageArguments, labels: tuple[str, ...], training_args: Any) -> Any:
    """Returns a model with a head for the labels and their names in its configuration."""
    name = image_args.model_name_or_path
    require_folder_or_name("model_name_or_path", name, "config.json and weights")
    names = {"label2id": {label: i for i, label in enumerate(labels)}, "id2label": dict(enumerate(labels))}
    if name is None:
        from transformers import ResNetConfig, ResNetForImageClassification

        return ResNetForImageClassification(ResNetConfig(**SMALL, **names))
    if not os.path.isdir(name):
        go_offline_if_unreachable()
    from transformers import AutoConfig, AutoModelForImageClassification

    source = _source(image_args)
    with errors_about("configuration", name, INSTEAD):
        config = AutoConfig.from_pretrained(name, **names, **source)
    if getattr(config, "num_channels", 3) != 3:
        raise MisconfigurationException(f"The model {name} takes images of {config.num_channels} channels, not of 3.")
    with errors_about("model", name, INSTEAD), reports_kept_back():
        with straight_to_device(training_args) as device:
            model, loading = AutoModelForImageClassification.from_pretrained(
                name, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **source, **device
            )
        if require_own_weights(model, loading, name):
            logger.warning("The head of %s was trained for other labels; a new one begins with random weights.", name)
    if image_args.freeze_backbone:
        model.base_model.requires_grad_(False)
    return model


def read_settings(image_args: ImageArguments, model: Any) -> Settings:
    """Returns size, mean and deviation of the images from the flags, the model's files, or ImageNet."""
    files: dict[str, Any] = {}
    if image_args.model_name_or_path is not None:
        files = _read_files(image_args)
    own = _side(getattr(model.config, "image_size", None))
    size = image_args.image_size or own or _side(files.get("crop_size")) or _side(files.get("size"))
    mean, std = files.get("image_mean") or MEAN, files.get("image_std") or STD
    return Settings(size or (32 if image_args.embedded else 224), tuple(mean), tuple(std))


def require_size(model: Any, size: int) -> None:
    """Raises MisconfigurationException if the model does not take images of that size."""
    import torch

    try:
        with torch.no_grad():
            model.eval()(pixel_values=torch.zeros(1, 3, size, size, device=model.device))
    except Exception as error:  # each model has its own way to say so
        raise MisconfigurationException(
            f"The model takes no images of {size} pixels: {sentence(error)} Leave --image_size out, or name another."
        ) from error


def _read_files(image_args: ImageArguments) -> dict[str, Any]:
    """Returns the content of preprocessor_config.json as data, because a processor may need torchvision."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        files, _ = ImageProcessingMixin.get_image_processor_dict(image_args.model_name_or_path, **_source(image_args))
    except Exception as error:  # it may be missing, in more ways than one
        logger.warning("Images are scaled as for ImageNet: the model has no preprocessor_config.json (%s).", error)
        return {}
    return files


def _side(size: Any) -> int | None:
    """Returns the pixels of a side from a configuration's number, pair or dictionary."""
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    if isinstance(size, (list, tuple)) and size:
        size = size[0]
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def write_settings(folder: str, settings: Settings) -> None:
    """Writes preprocessor_config.json, so that `transformers.pipeline` prepares images in the same way."""
    size = {"height": settings.size, "width": settings.size}
    content = {
        "image_processor_type": "ViTImageProcessor",  # the plain one: resize, rescale, normalise
        **{"do_resize": True, "size": size, "resample": 2},
        **{"do_rescale": True, "rescale_factor": 1 / 255},
        **{"do_normalize": True, "image_mean": settings.mean, "image_std": settings.std},
    }
    path = Path(folder) / "preprocessor_config.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _source(image_args: ImageArguments) -> dict[str, Any]:
    return {"cache_dir": image_args.cache_dir, "revision": image_args.model_revision, "token": image_args.token}
