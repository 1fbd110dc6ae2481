"""Compresses a directory into a zip file in memory."""

import io
import os
import random
import tempfile
import zipfile

FILES = 20
FILE_BYTES = 16_384
DATE = (2020, 1, 1, 0, 0, 0)  # a fixed date, so that the zip file has the same bytes in every run


def make_directory():
    directory = tempfile.mkdtemp(prefix="compression-", dir=os.environ.get("FARFORK_FUNCTION_DIR"))
    generator = random.Random(1)
    words = [f"word{number} " for number in range(500)]
    for number in range(FILES):
        text = "".join(generator.choices(words, k=FILE_BYTES // 8))
        with open(os.path.join(directory, f"{number:03}.txt"), "w") as file:
            file.write(text[:FILE_BYTES])
    return directory


DIRECTORY = make_directory()


def handler(payload):
    compressed = io.BytesIO()
    with zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(os.listdir(DIRECTORY)):
            with open(os.path.join(DIRECTORY, name), "rb") as file:
                archive.writestr(zipfile.ZipInfo(name, DATE), file.read(), zipfile.ZIP_DEFLATED)
    return compressed.getvalue()
