"""The expected outcome of each graph and of each configuration of an OVMS checkout, for `acceptance.py`.

An outcome is the name of a check in `acceptance_checks.py`, or what the server says of a graph that it does not serve.
Of 2026.4, commit 7e4df0c7ae34 of openvinotoolkit/model_server.
"""

from __future__ import annotations

CPP = "C++ calculators are not here: write it in Python"
DAG = "it is a DAG pipeline, and this server serves graphs only"
ABSENT = "does not exist"  # models that OVMS's demos fetch or its tests lay at run time, and paths that are wrong there too
GPU = "Cannot load library"  # of the GPU plugin, where there is no GPU
TRANSFORMERS = (
    "handler_path: preprocess.py cannot be imported: ModuleNotFoundError: No module named 'transformers'"
)
# OVMS serves these and fails at the first request, because the graph names what its model or server does not have.
OUTPUT = "'SUM:out' is 'out', and model 'add' has no such output; it has 'sum'"
NOT_A_MODEL = "is not a model of this server; its models:"
TOO_SHORT = "max_position_embeddings: expected more than 8, got 8: a pair has special tokens and two texts"

GRAPHS: dict[str, str] = {
    "src/test/audio/graph_stt.pbtxt": "hears",
    "src/test/audio/graph_stt_word_timestamps.pbtxt": "hears words",
    "src/test/audio/graph_tts.pbtxt": "speaks",
    "src/test/audio/graph_tts_custom_speed_bounds.pbtxt": "speaks, up to 2",
    "src/test/embeddings/graph_ov.pbtxt": "embeds",
    "src/test/embeddings/graph_ov_no_norm.pbtxt": "embeds, not normalized",
    "src/test/embeddings/graph_ov_pooling_last.pbtxt": "embeds",
    "src/test/embeddings/graph_ov_pooling_mean.pbtxt": "embeds",
    "src/test/embeddings/graph_ov_relative.pbtxt": "embeds",
    "src/test/graph_mesh_case/graphdummy/1/graph.pbtxt": "x + 1",
    "src/test/llm/lm_cb_prompt_lookup.pbtxt": "chats",
    "src/test/llm/lm_cb_regular.pbtxt": "chats",
    "src/test/llm/lm_cb_regular_queue.pbtxt": "chats",
    "src/test/llm/lm_cb_speculative.pbtxt": "chats",
    "src/test/llm/lm_cb_with_tool_parser.pbtxt": "chats",
    "src/test/llm/lm_legacy_regular.pbtxt": "chats",
    "src/test/llm/visual_language_model/vlm_cb_regular.pbtxt": "sees",
    "src/test/llm/visual_language_model/vlm_legacy_regular.pbtxt": "sees",
    "src/test/mediapipe/cli/graph.pbtxt": CPP,
    "src/test/mediapipe/cli/subconfig/graph.pbtxt": "x + y",
    "src/test/mediapipe/graph.pbtxt": "x + 1",
    "src/test/mediapipe/graphWithParams.pbtxt": CPP,
    "src/test/mediapipe/graph_gpt.pbtxt": CPP,
    "src/test/mediapipe/graph_gpt_with_queue.pbtxt": CPP,
    "src/test/mediapipe/graph_multipart.pbtxt": CPP,
    "src/test/mediapipe/graph_queue_dummyadapterfull_dummyinputnames.pbtxt": "x + 1",
    "src/test/mediapipe/graph_queue_dummyadapterfull_dummyinputnames_newpath.pbtxt": "x + 1",
    "src/test/mediapipe/graph_two_inputs_model.pbtxt": OUTPUT,
    "src/test/mediapipe/graphadapterfull_two_outputs_dag.pbtxt": NOT_A_MODEL,
    "src/test/mediapipe/graphadd.pbtxt": "x + y",
    "src/test/mediapipe/graphaddadapterfull.pbtxt": "x + y",
    "src/test/mediapipe/graphdummy.pbtxt": "x + 1",
    "src/test/mediapipe/graphdummy_mp.pbtxt": "x + 1",
    "src/test/mediapipe/graphdummy_tf.pbtxt": "x + 1",
    "src/test/mediapipe/graphdummy_tflite.pbtxt": "x + 1",
    "src/test/mediapipe/graphdummyadapterfull.pbtxt": "x + 1",
    "src/test/mediapipe/graphdummyadapterfull_dummyinputnames.pbtxt": "x + 1",
    "src/test/mediapipe/graphdummyadapterfull_dummyinputnames_newpath.pbtxt": "x + 1",
    "src/test/mediapipe/graphdummyadapterfull_two_outputs.pbtxt": "x + 1",
    "src/test/mediapipe/graphdummynonexistentcalculator.pbtxt": CPP,
    "src/test/mediapipe/graphimageinput.pbtxt": CPP,
    "src/test/mediapipe/graphkfspass.pbtxt": CPP,
    "src/test/mediapipe/graphovtensorpytensorconverter.pbtxt": "python: x",
    "src/test/mediapipe/graphpassthrough.pbtxt": "x",
    "src/test/mediapipe/graphpytensorovtensorconverter.pbtxt": "python: x",
    "src/test/mediapipe/graphpytensorpassthrough.pbtxt": "python: x",
    "src/test/mediapipe/graphpythonsummator.pbtxt": "python: x + y",
    "src/test/mediapipe/graphscalar.pbtxt": "x",
    "src/test/mediapipe/graphscalar_tf.pbtxt": "x",
    "src/test/mediapipe/graphtfpassthrough.pbtxt": "x",
    "src/test/mediapipe/model_mesh/cli/1/graph.pbtxt": "x + y",
    "src/test/mediapipe/model_mesh/cli/graph.pbtxt": CPP,
    "src/test/mediapipe/model_mesh/config/1/graph.pbtxt": "x + y",
    "src/test/mediapipe/model_mesh/config/graph.pbtxt": CPP,
    "src/test/mediapipe/negative/graph_error.pbtxt": CPP,
    "src/test/mediapipe/negative/graph_exception_during_close.pbtxt": CPP,
    "src/test/mediapipe/negative/graph_exception_during_getcontract.pbtxt": CPP,
    "src/test/mediapipe/negative/graph_exception_during_open.pbtxt": CPP,
    "src/test/mediapipe/negative/graph_exception_during_process.pbtxt": CPP,
    "src/test/mediapipe/negative/graph_long_loading.pbtxt": CPP,
    "src/test/mediapipe/negative/graph_no_calc_output_stream/graph_no_calc_output_stream.pbtxt": CPP,
    "src/test/mediapipe/python/two_python_outputs_graph.pbtxt": "python: fails",
    "src/test/mediapipe/relative_paths/graph1/graph.pbtxt": "x + y",
    "src/test/mediapipe/relative_paths/graph1/graphaddadapterfull.pbtxt": "x + y",
    "src/test/mediapipe/relative_paths/graph2/graph.pbtxt": "x + y",
    "src/test/mediapipe/relative_paths/graph2/graphadd.pbtxt": "x + y",
    "src/test/mediapipe/relative_paths/graph_only_name/graphdummy/graph.pbtxt": "x + 1",
    "src/test/mediapipe/two_input_graph.pbtxt": CPP,
    "src/test/rerank/graph_ov.pbtxt": "ranks",
    "src/test/rerank/with_params/graph_ov.pbtxt": "ranks",
    "src/test/rerank/with_params/invalid_graph_ov.pbtxt": TOO_SHORT,
    "demos/benchmark/python/sample_data/graph.pbtxt": "2 * sums",
    "demos/continuous_batching/graph.pbtxt": "chats",
    "demos/continuous_batching/graph_gpu.pbtxt": GPU,
    "demos/mediapipe/holistic_tracking/holistic_tracking.pbtxt": CPP,
    "demos/mediapipe/image_classification/resnetMediapipe/graph.pbtxt": "2 * sums",
    "demos/mediapipe/iris_tracking/iris_tracking.pbtxt": CPP,
    "demos/mediapipe/multi_model_graph/dummyAdd/graph.pbtxt": "x + 1 + y",
    "demos/mediapipe/object_detection/graph.pbtxt": CPP,
    "demos/python_demos/clip_image_classification/servable/graph.pbtxt": TRANSFORMERS,
}

CONFIGURATIONS: dict[str, dict[str, str]] = {
    "src/test/audio/config_stt.json": {"speech2text": "hears", "speech2textWordTimestamps": "hears words"},
    "src/test/audio/config_tts.json": {"text2speech": "speaks"},
    "src/test/audio/config_tts_custom_speed_bounds.json": {"text2speech": "speaks, up to 2"},
    "src/test/configs/config.json": {"dummy": "x + 1"},
    "src/test/configs/config_benchmark.json": {"dummy": "x + 1", "resnet": "2 * sums"},
    "src/test/configs/config_cpu_dummy.json": {"dummy": "x + 1"},
    "src/test/configs/config_double_dummy.json": {"dummy": "x + 1", "pipeline1Dummy": DAG},
    "src/test/configs/config_dummy_dag.json": {"dummy": "x + 1", "pipeline1Dummy": DAG},
    "src/test/configs/config_dummy_dynamic_entry_dag.json": {
        "dummy": "x + 1",
        "pipeline1DummyDynamicDemultiplex": DAG,
    },
    "src/test/configs/config_dummy_dynamic_shape.json": {"dummy": "x + 1"},
    "src/test/configs/config_dummy_full_dynamic_shape.json": {"dummy": "x + 1"},
    "src/test/configs/config_gpu_dummy.json": {"dummy": GPU},
    "src/test/configs/config_gpu_face_detection_adas.json": {"face_detection_adas": ABSENT},
    "src/test/configs/config_metadata_all.json": {
        "add": "x + y",
        "dummy": "x + 1",
        "dummyDynamic": "x + 1",
        "pipeline1Dummy": DAG,
        "scalar": "x",
    },
    "src/test/configs/config_standard_dummy.json": {"dummy": "x + 1"},
    "src/test/configs/config_standard_scalar.json": {"scalar": "x"},
    "src/test/configs/config_string.json": {"passthrough": "strings"},
    "src/test/configs/emptyConfig.json": {},
    "src/test/configs/emptyConfigWithMetrics.json": {},
    "src/test/embeddings/config_embeddings.json": {
        "embeddings_ov": "embeds",
        "embeddings_ov_no_norm": "embeds, not normalized",
        "embeddings_ov_pooling_last": "embeds",
        "embeddings_ov_pooling_mean": "embeds",
        "embeddings_ov_relative": "embeds",
    },
    "src/test/graph_mesh_case/config_mediapipe_dummy_adapter_full_only_name_specified_in_model_config_no_base.json": {
        "graphdummy": "x + 1",
        "dummy": "x + 1",
    },
    "src/test/graph_mesh_case/graphdummy/1/config.json": {"dummy": "x + 1"},
    "src/test/llm/assisted_decoding_config.json": {
        "lm_cb_prompt_lookup": "chats",
        "lm_cb_speculative": "chats",
    },
    "src/test/llm/config.json": {
        "lm_cb_regular": "chats",
        "lm_cb_with_tool_parser": "chats",
        "lm_legacy_regular": "chats",
        "vlm_cb_regular": "sees",
        "vlm_legacy_regular": "sees",
    },
    "src/test/llm/config_queue.json": {"lm_cb_regular_queue": "chats"},
    "src/test/llm/visual_language_model/config.json": {
        "vlm_cb_regular": "sees",
        "vlm_legacy_regular": "sees",
    },
    "src/test/mediapipe/cli/subconfig/subconfig.json": {"add": "x + y"},
    "src/test/mediapipe/config_mediapipe_add_adapter_full.json": {
        "add": "x + y",
        "mediapipeAdd": "x + y",
        "mediapipeAddADAPTFULL": "x + y",
    },
    "src/test/mediapipe/config_mediapipe_all_graphs_adapter_full.json": {
        "add": "x + y",
        "dummy": "x + 1",
        "mediapipeAdd": "x + y",
        "mediapipeAddADAPTFULL": "x + y",
        "mediapipeDummy": "x + 1",
        "mediapipeDummyADAPTFULL": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_default_subconfig.json": {
        "dummy": "x + 1",
        "mediaDummy": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_dynamic.json": {
        "dummy": "x + 1",
        "mediaDummy": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_full.json": {
        "dummy": "x + 1",
        "mediaDummy": "x + 1",
        "mediaDummyADAPTFULL": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_full_dag.json": {
        "dummy": "x + 1",
        "dummyDAG": DAG,
        "mediaDummy": "x + 1",
        "mediaDummyADAPTFULL": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_full_dummy_in_both_config_and_subconfig.json": {
        "dummy": "x + 1",
        "mediaDummy": "x + 1",
        "mediaDummyADAPTFULL": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_full_no_graph_path.json": {
        "dummy": "x + 1",
        "graphdummy": "x + 1",
        "graphdummyadapterfull": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_full_relative_to_base_path.json": {
        "dummy": "x + 1",
        "dummy1": "x + 1",
        "mediaDummy": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_full_subconfig.json": {
        "dummy": "x + 1",
        "mediaDummy": "x + 1",
        "mediaDummyADAPTFULL": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_adapter_scalar.json": {"mediaScalar": "x", "scalar": "x"},
    "src/test/mediapipe/config_mediapipe_dummy_empty_subconfig.json": {
        "dummy": "x + 1",
        "mediaDummy": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_dummy_kfs.json": {"mediapipeDummyKFS": CPP},
    "src/test/mediapipe/config_mediapipe_dummy_nonexistent_calculator.json": {
        "dummy": "x + 1",
        "mediaDummyNonexistentCaclulator": CPP,
    },
    "src/test/mediapipe/config_mediapipe_dummy_two_outputs.json": {
        "dummy": "x + 1",
        "mediapipeDummyTwoOutputs": "x + 1",
    },
    "src/test/mediapipe/config_mediapipe_graph_name_with_slash.json": {"add": "x + y", "my/graph": OUTPUT},
    "src/test/mediapipe/config_mediapipe_graph_with_side_packets.json": {"mediaWithParams": CPP},
    "src/test/mediapipe/config_mediapipe_image_input.json": {"mediapipeImageInput": CPP},
    "src/test/mediapipe/config_mediapipe_multipart_mock.json": {"multipart": CPP},
    "src/test/mediapipe/config_mediapipe_openai_chat_completions_mock.json": {"gpt": CPP},
    "src/test/mediapipe/config_mediapipe_openai_chat_completions_mock_with_queue.json": {"gpt": CPP},
    "src/test/mediapipe/config_mediapipe_ovtensor_pytensor_converter.json": {
        "mediapipeOvTensorPyTensorConverter": "python: x"
    },
    "src/test/mediapipe/config_mediapipe_pytensor_ovtensor_converter.json": {
        "mediapipePyTensorOvTensorConverter": "python: x"
    },
    "src/test/mediapipe/config_mediapipe_two_inputs.json": {"add": "x + y", "my_graph": OUTPUT},
    "src/test/mediapipe/config_mediapipe_two_outputs_dag.json": {
        "mediapipeTwoOutputsDag": NOT_A_MODEL,
        "my_pipeline": DAG,
    },
    "src/test/mediapipe/config_mp_pytensor_passthrough.json": {"mpPytensorPassthrough": "python: x"},
    "src/test/mediapipe/config_mp_tf_passthrough.json": {
        "dummy": "x + 1",
        "mpTFDummy": "x + 1",
        "mpTFScalar": "x",
        "mpTfsPassthrough": "x",
        "scalar": "x",
    },
    "src/test/mediapipe/config_python_summator.json": {"mediapipeAdd": "python: x + y"},
    "src/test/mediapipe/config_standard_add.json": {"add": "x + y"},
    "src/test/mediapipe/config_standard_dummy.json": {"dummy": "x + 1"},
    "src/test/mediapipe/empty_subconfig.json": {},
    "src/test/mediapipe/model_mesh/cli/1/subconfig.json": {"add": "x + y"},
    "src/test/mediapipe/model_mesh/config/1/subconfig.json": {"add": "x + y"},
    "src/test/mediapipe/model_mesh/config.json": {"graphkfspass": CPP},
    "src/test/mediapipe/negative/config_exception_during_close.json": {
        "graph_exception_during_close": ABSENT
    },
    "src/test/mediapipe/negative/config_exception_during_getcontract.json": {
        "graph_exception_during_getcontract": ABSENT
    },
    "src/test/mediapipe/negative/config_exception_during_open.json": {"graph_exception_during_open": ABSENT},
    "src/test/mediapipe/negative/config_exception_during_process.json": {
        "graph_exception_during_process": ABSENT
    },
    "src/test/mediapipe/negative/config_no_calc_output_stream.json": {"graph_no_calc_output_stream": CPP},
    "src/test/mediapipe/python/mediapipe_add_python_node.json": {"mediapipePythonBackend": "python: fails"},
    "src/test/mediapipe/relative_paths/config_mp_passthrough.json": {
        "dummy": "x + 1",
        "mpTensorDummy": "x + 1",
    },
    "src/test/mediapipe/relative_paths/config_relative_add_subconfig.json": {
        "dummy1": "x + 1",
        "dummy2": "x + 1",
        "graph1": NOT_A_MODEL,
        "graph2": NOT_A_MODEL,
    },
    "src/test/mediapipe/relative_paths/config_relative_add_subconfig_negative.json": {
        "mediapipeAddADAPT": ABSENT,
        "mediapipeAddADAPTFULL": ABSENT,
    },
    "src/test/mediapipe/relative_paths/config_relative_dummy.json": {
        "dummy1": "x + 1",
        "dummy2": "x + 1",
        "graph1": NOT_A_MODEL,
        "graph2": NOT_A_MODEL,
    },
    "src/test/mediapipe/relative_paths/config_relative_dummy_negative.json": {
        "dummy1": ABSENT,
        "dummy2": ABSENT,
        "mediapipeAddADAPT": ABSENT,
        "mediapipeAddADAPTFULL": ABSENT,
    },
    "src/test/mediapipe/relative_paths/config_relative_dummy_subconfig_base_path.json": {
        "dummy1": "x + 1",
        "dummy2": "x + 1",
        "graphadd": NOT_A_MODEL,
        "graphaddadapterfull": NOT_A_MODEL,
    },
    "src/test/mediapipe/relative_paths/config_tflite_passthrough.json": {
        "dummy": "x + 1",
        "mpTfLiteTensorDummy": "x + 1",
    },
    "src/test/mediapipe/relative_paths/graph1/subconfig.json": {"dummy1": "x + 1"},
    "src/test/mediapipe/relative_paths/graph2/subconfig.json": {"dummy2": "x + 1"},
    "src/test/mediapipe/relative_paths/graph_only_name/config_mediapipe_dummy_adapter_full_only_name_specified.json": {
        "dummy": "x + 1",
        "graphdummy": "x + 1",
    },
    "src/test/mediapipe/relative_paths/graph_only_name/config_mediapipe_dummy_adapter_full_only_name_specified_in_model_config.json": {
        "dummy": "x + 1",
        "graphdummy": "x + 1",
    },
    "src/test/mediapipe/relative_paths/graph_only_name/config_mediapipe_dummy_adapter_full_only_name_specified_in_model_config_no_base.json": {
        "dummy": "x + 1",
        "graphdummy": "x + 1",
    },
    "src/test/mediapipe/relative_paths/graph_only_name/graphdummy/subconfig.json": {"dummy": "x + 1"},
    "src/test/mediapipe/relative_paths/graph_only_name/relative_config_and_relative_base_path_in_model_config.json": {
        "dummy": "x + 1",
        "graphdummy": "x + 1",
    },
    "src/test/mediapipe/relative_paths/only_subconfig/subconfig.json": {"dummy": "x + 1"},
    "src/test/rerank/config.json": {"rerank_ov": "ranks"},
    "src/test/rerank/with_params/config.json": {
        "rerank_model": ABSENT,
        "rerank_ov": "ranks",
        "tokenizer_model": ABSENT,
    },
    "src/test/rerank/with_params/invalid_config.json": {
        "rerank_model": ABSENT,
        "rerank_ov": TOO_SHORT,
        "tokenizer_model": ABSENT,
    },
    "src/custom_nodes/image_transformation/example_config.json": {"image_transformation_test": DAG},
    "demos/benchmark/python/sample_data/config.json": {
        "resnet50-binary-0001": "2 * sums",
        "resnet50-binary-0001_mediapipe": "2 * sums",
    },
    "demos/c_api_minimal_app/capi_files/demos/config.json": {"dummy": "x + 1"},
    "demos/c_api_minimal_app/capi_files/demos/config_benchmark.json": {"dummy": "x + 1"},
    "demos/c_api_minimal_app/capi_files/demos/config_standard_dummy.json": {"dummy": "x + 1"},
    "demos/continuous_batching/config.json": {"meta-llama/Meta-Llama-3-8B-Instruct": "chats"},
    "demos/embeddings/config.json": {"Alibaba-NLP/gte-large-en-v1.5": ABSENT},
    "demos/embeddings/subconfig.json": {"embeddings_model": ABSENT, "tokenizer_model": ABSENT},
    "demos/mediapipe/holistic_tracking/config_holistic.json": {
        "face_detection": ABSENT,
        "face_landmark": ABSENT,
        "hand_landmark_full": ABSENT,
        "hand_recrop": ABSENT,
        "holisticTracking": CPP,
        "pose_detection": ABSENT,
        "pose_landmark_full": ABSENT,
    },
    "demos/mediapipe/image_classification/config.json": {"resnet": "2 * sums", "resnetMediapipe": "2 * sums"},
    "demos/mediapipe/image_classification/resnetMediapipe/subconfig.json": {"resnet": "2 * sums"},
    "demos/mediapipe/iris_tracking/config_iris.json": {
        "face_detection": ABSENT,
        "face_landmark": ABSENT,
        "irisTracking": CPP,
        "iris_landmark": ABSENT,
    },
    "demos/mediapipe/multi_model_graph/config.json": {
        "add": "x + y",
        "dummy": "x + 1",
        "dummyAdd": "x + 1 + y",
    },
    "demos/mediapipe/multi_model_graph/dummyAdd/subconfig.json": {"add": "x + y", "dummy": "x + 1"},
    "demos/mediapipe/object_detection/config.json": {
        "objectDetection": CPP,
        "ssdlite_object_detection": ABSENT,
    },
    "demos/python_demos/clip_image_classification/servable/config.json": {
        "clip": ABSENT,
        "python_model": TRANSFORMERS,
    },
}
