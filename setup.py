"""Package metadata. The pinned versions that work together are in requirements.txt."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "tf_pflego" / "__init__.py").read_text(encoding="utf-8")
)[1]

setup(
    name="tf_pflego",
    version=VERSION,
    description="Personalised federated learning on TensorFlow Federated: PFLEGO and the methods "
    "that it is compared with",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["tf_pflego", "tf_pflego.*"]),
    package_data={"tf_pflego.reports": ["page.css", "page.js"]},
    python_requires=">=3.10,<3.12",
    # TensorFlow Federated is not listed, because the versions that it pins cannot all be installed.
    # requirements.txt lists it together with versions that can. importlib_resources is listed
    # because newer versions of TensorFlow Datasets use it without declaring it.
    install_requires=[
        "absl-py",
        "importlib_resources",
        "matplotlib",
        "numpy",
        "scikit-learn",
        "tensorflow",
        "tensorflow-datasets",
        "tqdm",
    ],
    extras_require={"dev": ["playwright", "pytest", "pytest-xdist", "ruff"]},
    entry_points={"console_scripts": ["tf-pflego = tf_pflego.main:entry_point"]},
)
