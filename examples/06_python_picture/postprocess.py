"""Makes the answer of the model's scores, see examples/06_python_picture/graph.pbtxt for how to run it."""

import numpy as np


class OvmsPythonModel:
    def execute(self, inputs):
        upright, turned = np.array(inputs[0])[0].tolist()
        return {"upside_down": turned > upright, "score": round(max(upright, turned), 3)}
