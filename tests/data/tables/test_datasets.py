"""Datasets of TFDS whose examples say whose they are, as tables."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

import tf_pflego as pfl
from tests.data.tables import schools
from tf_pflego.data.datasets import prepared
from tf_pflego.runs import loading


class SmallSchools(tfds.core.GeneratorBasedBuilder):
    """Pupils, with features of the kinds that datasets of TFDS have."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict(
            {
                "School": tfds.features.Text(),
                "Sex": tfds.features.ClassLabel(names=["Female", "Male"]),
                "SES": np.float32,
                "Passed": np.bool_,
                "marks": tfds.features.Sequence(np.int64),
            }
        )
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 2), "test": self._generate_examples(1, 2)}

    def _generate_examples(self, first, step):
        columns = schools.columns()
        for row in range(first, len(columns["SES"]), step):
            pupil = {name: columns[name][row] for name in ("Sex", "SES")}
            pupil |= {"School": str(columns["School"][row]), "marks": [row]}
            yield row, pupil | {"Passed": columns["Passed"][row] == "yes"}


def test_a_feature_of_a_dataset_that_is_there_says_whose_an_example_is(tmp_path):
    with prepared._offline():
        SmallSchools(data_dir=tmp_path).download_and_prepare()
    settings = {"client_column": "School", "label_column": "Passed", "data_dir": tmp_path}
    clients = loading.load_clients(pfl.RunConfig(dataset="small_schools", **settings))
    assert (clients.dataset, clients.client_names) == ("small_schools", schools.SCHOOLS)
    assert (clients.train.sizes + clients.test.sizes).tolist() == list(schools.SIZES)
    status, sex = clients.preprocessing.columns
    assert sex.categories == ("Female", "Male")
    assert (status.name, clients.class_names) == ("SES", ("false", "true"))
    ones = clients.train.examples[:, 1:]
    assert (ones.sum(axis=1) == 1).all()
    config = pfl.RunConfig(dataset="movielens/100k-ratings", **settings)
    with pytest.raises(prepared.DatasetError, match="`dataset` movielens/100k-ratings is not in"):
        loading.load_clients(config)
