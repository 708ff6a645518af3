"""TFDS builder of `digits`: scikit-learn's 1,797 handwritten digits, which need no network."""

import numpy as np
import tensorflow_datasets as tfds

_TEST_EVERY = 5


class Digits(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits of 8x8 pixels (Alpaydin and Kaynak, UCI 1998), as scikit-learn ships them.

    Every fifth example is the test split. The grey values 0 to 16 are stretched to 0 to 255.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012  the name and form are TFDS'

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1)),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://scikit-learn.org/stable/modules/generated/"
            "sklearn.datasets.load_digits.html",
            citation="@misc{optdigits, author={Alpaydin, E. and Kaynak, C.}, year={1998}, "
            "doi={10.24432/C50P49}}",
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {
            "train": self._generate_examples(test=False),
            "test": self._generate_examples(test=True),
        }

    def _generate_examples(self, test):
        from sklearn.datasets import load_digits  # Slow to import, and needed only once.

        digits = load_digits()
        images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]
        for index, (image, label) in enumerate(zip(images, digits.target, strict=True)):
            if (index % _TEST_EVERY == _TEST_EVERY - 1) == test:
                yield index, {"image": image, "label": int(label)}
