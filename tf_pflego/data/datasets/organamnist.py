"""TFDS builder of `organamnist`: OrganAMNIST, from MedMNIST's published file."""

import numpy as np
import tensorflow_datasets as tfds

_HOMEPAGE = "https://medmnist.com"
_NUM_CLASSES = 11
_SIDE = 28
_FILE = f"organamnist.npz, the file with images of {_SIDE}x{_SIDE} pixels, from {_HOMEPAGE}"
_NAMES_IN_MANUAL = {"train": "train", "validation": "val", "test": "test"}


class Organamnist(tfds.core.GeneratorBasedBuilder):
    """Abdominal CT slices of 28x28 grey pixels, each of one of 11 organs (Yang et al. 2023).

    The splits are the file's: train, validation and test. No CT scan has slices in two of them.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012  the name and form are TFDS'
    MANUAL = "organamnist.npz"
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"Get {_FILE} and put it there."

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(_SIDE, _SIDE, 1)),
                    "label": tfds.features.ClassLabel(num_classes=_NUM_CLASSES),
                }
            ),
            supervised_keys=("image", "label"),
            homepage=_HOMEPAGE,
            citation="@article{medmnistv2, title={MedMNIST v2 - A large-scale lightweight "
            "benchmark for 2D and 3D biomedical image classification}, author={Yang, Jiancheng and "
            "Shi, Rui and Wei, Donglai and Liu, Zequan and Zhao, Lin and Ke, Bilian and Pfister, "
            "Hanspeter and Ni, Bingbing}, journal={Scientific Data}, volume={10}, year={2023}, "
            "doi={10.1038/s41597-022-01721-8}}",
        )

    def _split_generators(self, dl_manager):
        arrays = np.load(dl_manager.manual_dir / self.MANUAL)
        return {
            split: self._generate_examples(arrays[f"{name}_images"], arrays[f"{name}_labels"])
            for split, name in _NAMES_IN_MANUAL.items()
        }

    def _generate_examples(self, images, labels):
        for index, (image, label) in enumerate(zip(images[..., None], labels[:, 0], strict=True)):
            yield index, {"image": image, "label": int(label)}
