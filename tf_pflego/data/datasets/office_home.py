"""TFDS builder of `office_home`: Office-Home, from the image folders that its authors publish."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

DOMAINS = ("Art", "Clipart", "Product", "Real World")
_HOMEPAGE = "https://www.hemanthdv.org/officeHomeDataset.html"
_SIDE = 32


class OfficeHome(tfds.core.GeneratorBasedBuilder):
    """Pictures of 65 kinds of everyday objects in four domains (Venkateswara et al. 2017).

    The only split is `train`. The pictures have many sizes. Here each is 32x32 RGB pixels, as in
    the PGFed paper's training: resized to a square, bilinearly, with antialiasing (a triangle
    filter as wide as the reduction).

    A class is a folder's name, and labels number them in ascending order of Unicode, capitals
    first. Files without the suffix .jpg and names with a leading dot are ignored.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012  the name and form are TFDS'
    MANUAL = "office_home"
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        f"Get the archive OfficeHomeDataset_10072016.zip from {_HOMEPAGE}, unpack it there and "
        f"rename its folder to {MANUAL}, so that {MANUAL} has the folders {', '.join(DOMAINS)}."
    )

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(_SIDE, _SIDE, 3)),
                    "label": tfds.features.ClassLabel(),  # Named when the folders are read.
                    "domain": tfds.features.ClassLabel(names=list(DOMAINS)),
                }
            ),
            supervised_keys=("image", "label"),
            homepage=_HOMEPAGE,
            citation="@inproceedings{officehome, title={Deep Hashing Network for Unsupervised "
            "Domain Adaptation}, author={Venkateswara, Hemanth and Eusebio, Jose and Chakraborty, "
            "Shayok and Panchanathan, Sethuraman}, booktitle={IEEE Conference on Computer Vision "
            "and Pattern Recognition}, year={2017}}",
        )

    def _split_generators(self, dl_manager):
        folder = dl_manager.manual_dir / self.MANUAL
        classes = _classes(folder)
        self.info.features["label"].names = classes
        return {"train": self._generate_examples(folder, classes)}

    def _generate_examples(self, folder, classes):
        for domain in DOMAINS:
            for label in classes:
                paths = [p for p in _listed(folder / domain / label) if p.suffix.lower() == ".jpg"]
                if not paths:
                    raise ValueError(f"{folder / domain / label} has no .jpg file")
                for path in paths:
                    example = {"image": _image(path), "label": label, "domain": domain}
                    yield f"{domain}/{label}/{path.name}", example


def _classes(folder):
    """Returns the names of the class folders, ascending, which are the same in all domains."""
    names, *others = (
        [path.name for path in _listed(folder / domain) if path.is_dir()] for domain in DOMAINS
    )
    for domain, found in zip(DOMAINS[1:], others, strict=True):
        if found != names:
            odd = min({*found} ^ {*names})
            raise ValueError(f"{odd!r} is in one of the folders {DOMAINS[0]} and {domain} only")
    return names


def _image(path):
    """Returns a file's picture, [32, 32, 3] uint8."""
    try:
        picture = tf.io.decode_jpeg(path.read_bytes(), channels=3)
    except tf.errors.OpError as error:
        raise ValueError(f"{path} must be a JPEG image; got another file") from error
    small = tf.image.resize(picture, [_SIDE] * 2, method="bilinear", antialias=True)
    return np.rint(small.numpy()).astype(np.uint8)


def _listed(folder):
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
