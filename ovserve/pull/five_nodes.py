"""The graph.pbtxt of `ovserve pull --explicit`: the same as five nodes, with room for one's own."""

FIVE_BEFORE = """\
input_stream: "HTTP_REQUEST_PAYLOAD:http"
output_stream: "HTTP_RESPONSE_PAYLOAD:reply"

node {
  name: "Frontend"
  calculator: "HttpFrontendCalculator"
  input_stream: "HTTP_REQUEST_PAYLOAD:http"
  output_stream: "DECODED:decoded"
}

node {
  name: "RequestParser"
  calculator: "RequestParserCalculator"
  input_stream: "DECODED:decoded"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "GENERATE:generate"
}

node {
  name: "LLMExecutor"
  calculator: "LLMExecutorCalculator"
  input_stream: "GENERATE:generate"
  input_stream: "LOOPBACK:loopback"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "DELTA:delta"
  output_stream: "LOOPBACK:loopback"
  input_stream_info { tag_index: "LOOPBACK:0" back_edge: true }
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler"
    options {
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } }
    }
  }
  node_options {
    [type.googleapis.com/mediapipe.LLMCalculatorOptions] {
"""
FIVE_AFTER = """\
    }
  }
}

node {
  name: "OutputParser"
  calculator: "OutputParserCalculator"
  input_stream: "GENERATE:generate"
  input_stream: "DELTA:delta"
  output_stream: "PARSED:parsed"
}

node {
  name: "ResponseWriter"
  calculator: "ResponseWriterCalculator"
  input_stream: "GENERATE:generate"
  input_stream: "PARSED:parsed"
  output_stream: "HTTP_RESPONSE_PAYLOAD:reply"
}
"""
