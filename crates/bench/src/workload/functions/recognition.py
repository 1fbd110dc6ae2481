"""Classifies an image with ResNet-50 (He et al., 2015). The weights are random, but the same in every run."""

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

BLOCKS = (3, 4, 6, 3)
CLASSES = 1000
IMAGE = (1, 3, 224, 224)


class ModelBuilder:
    """Adds layers to a graph."""

    def __init__(self):
        self.generator = numpy.random.default_rng(1)
        self.nodes = []
        self.weights = []

    def add_weight(self, *shape):
        scale = numpy.sqrt(2.0 / numpy.prod(shape[1:]))
        values = (self.generator.standard_normal(shape) * scale).astype(numpy.float32)
        name = f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add_node(self, kind, *inputs, **attributes):
        output = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def add_convolution(self, before, channels_in, channels_out, size, stride=1):
        pads = [size // 2] * 4
        weight = self.add_weight(channels_out, channels_in, size, size)
        return self.add_node("Conv", before, weight, strides=[stride, stride], pads=pads)

    def add_bottleneck(self, before, channels_in, channels, stride):
        inner = self.add_node("Relu", self.add_convolution(before, channels_in, channels, 1))
        inner = self.add_node("Relu", self.add_convolution(inner, channels, channels, 3, stride))
        inner = self.add_convolution(inner, channels, 4 * channels, 1)
        shortcut = before
        if stride != 1 or channels_in != 4 * channels:
            shortcut = self.add_convolution(before, channels_in, 4 * channels, 1, stride)
        # Without batch normalisation, each sum is halved, so that no value overflows.
        half = self.add_node("Mul", self.add_node("Add", inner, shortcut), "half")
        return self.add_node("Relu", half)


def make_model():
    builder = ModelBuilder()
    layer = builder.add_node("Relu", builder.add_convolution("image", 3, 64, 7, 2))
    layer = builder.add_node("MaxPool", layer, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels_in = 64
    for stage, count in enumerate(BLOCKS):
        channels = 64 << stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layer = builder.add_bottleneck(layer, channels_in, channels, stride)
            channels_in = 4 * channels
    layer = builder.add_node("Flatten", builder.add_node("GlobalAveragePool", layer))
    layer = builder.add_node("MatMul", layer, builder.add_weight(channels_in, CLASSES))
    builder.weights.append(numpy_helper.from_array(numpy.float32(0.5), "half"))
    graph = helper.make_graph(
        builder.nodes,
        "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, IMAGE)],
        [helper.make_tensor_value_info(layer, TensorProto.FLOAT, (1, CLASSES))],
        builder.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def start_session():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(make_model(), options, providers=["CPUExecutionProvider"])


SESSION = start_session()
PIXELS = numpy.random.default_rng(2).random(IMAGE, dtype=numpy.float32)


def handler(payload):
    (scores,) = SESSION.run(None, {"image": PIXELS})
    best = numpy.argsort(-scores[0], kind="stable")[:5]
    return [[int(label), round(float(scores[0][label]), 4)] for label in best]
