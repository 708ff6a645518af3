"""The examples of a TFDS dataset as a table."""

import pyarrow as pa
import tensorflow_datasets as tfds

from tf_pflego.data.datasets import prepared

_BATCH = 4096


def of_dataset(name: str, data_dir: str | None, download: bool) -> pa.Table:
    """Returns the examples of a TFDS dataset, of all splits. The rest is as in `data.load`.

    The columns are those features of an example that are one number or one text.
    """
    builder = prepared.builder(name, data_dir, download, is_ours=False)
    with prepared.reading(name, str(builder.data_dir), "its examples"):
        features = {n: f for n, f in builder.info.features.items() if f.shape == ()}
        only = tfds.decode.PartialDecoding(dict.fromkeys(features, True))
        parts = []
        for split in builder.info.splits:
            batches = builder.as_dataset(split=split, batch_size=_BATCH, decoders=only)
            parts += [pa.table(batch) for batch in tfds.as_numpy(batches)]
        table = pa.concat_tables(parts)
        for column, feature in features.items():
            array = table[column]
            if pa.types.is_binary(array.type):
                array = array.cast(pa.string())
            elif names := getattr(feature, "names", None):  # Of classes they are the categories.
                array = pa.DictionaryArray.from_arrays(array.combine_chunks(), names)
            table = table.set_column(table.column_names.index(column), column, array)
        return table
