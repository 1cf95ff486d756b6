"""The handler of `graph.pbtxt`: counts the words of a body, or streams them as events."""

import time


class OvmsPythonModel:
    def execute(self, inputs):
        words = inputs[0].text.split()
        if "stream" in inputs[0].query:
            return self.events(words)
        return {"words": len(words), "longest": max(words, key=len, default="")}

    def events(self, words):
        for word in words:
            yield {"word": word}
            time.sleep(0.1)
