"""TFDS data sets written to disk, by this process or by another at the same time."""


def prepared(make):
    """The TFDS builder that `make()` gives, downloaded and written as array_record files where it was not.

    Raises:
      OSError, DownloadError, RuntimeError: as TFDS raises them, for the network and the disk.
    """
    builder = make()
    try:
        builder.download_and_prepare(file_format="array_record")
    except FileExistsError:  # another process was first, and its files are as good
        return make()
    return builder
