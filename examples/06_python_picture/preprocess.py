"""Makes the model's input of a picture file, see examples/06_python_picture/graph.pbtxt for how to run it."""

import io

import numpy as np
from PIL import Image
from pyovms import Tensor

HEIGHT, WIDTH = 48, 192


class OvmsPythonModel:
    def initialize(self, kwargs):
        self.output = kwargs["output_names"][0]

    def execute(self, inputs):
        picture = Image.open(io.BytesIO(inputs[0].body)).convert("RGB")
        width = min(WIDTH, max(1, round(picture.width / picture.height * HEIGHT)))
        pixels = np.asarray(picture.resize((width, HEIGHT)), np.float32)[:, :, ::-1]  # blue first
        tensor = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
        tensor[0, :, :, :width] = (pixels / 127.5 - 1).transpose(2, 0, 1)
        return [Tensor(self.output, tensor)]
