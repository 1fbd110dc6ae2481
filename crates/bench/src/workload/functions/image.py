"""Rotates and flips a JPEG image."""

import io

import numpy
from PIL import Image

WIDTH, HEIGHT = 1600, 1200


def make_image():
    columns = numpy.linspace(0, 255, WIDTH, dtype=numpy.uint8)
    rows = numpy.linspace(0, 255, HEIGHT, dtype=numpy.uint8)
    red, green = numpy.meshgrid(columns, rows)
    noise = numpy.random.default_rng(1).integers(0, 64, (HEIGHT, WIDTH), dtype=numpy.uint8)
    jpeg = io.BytesIO()
    Image.fromarray(numpy.dstack([red, green, noise])).save(jpeg, "JPEG", quality=90)
    return jpeg.getvalue()


JPEG = make_image()


def handler(payload):
    changed = []
    operations = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_LEFT_RIGHT)
    for operation in operations:
        with Image.open(io.BytesIO(JPEG)) as image:
            jpeg = io.BytesIO()
            image.transpose(operation).save(jpeg, "JPEG", quality=90)
            changed.append(jpeg.getvalue())
    return b"".join(changed)
