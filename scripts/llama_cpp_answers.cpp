// What llama.cpp makes of a .gguf file: tokens of texts, or logits of tokens. Built and run by gguf_vectors.py.
//   answers FILE.gguf tokens ADD_SPECIAL < texts, each ended by a zero byte    a JSON list of each
//   answers FILE.gguf logits ID,ID,... CONTEXT                                 f32 of each token, in binary
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

static int tokens(const llama_vocab *vocabulary, bool add_special) {
    std::string texts;
    for (int c; (c = getchar()) != EOF;) texts.push_back(char(c));
    for (size_t at = 0; at < texts.size();) {
        size_t end = texts.find('\0', at);
        std::vector<llama_token> ids(end - at + 16);
        int count = llama_tokenize(vocabulary, &texts[at], end - at, ids.data(), ids.size(), add_special, true);
        printf("[");
        for (int i = 0; i < count; i++) printf(i ? ", %d" : "%d", ids[i]);
        printf("]\n");
        at = end + 1;
    }
    return 0;
}

static int logits(llama_model *model, char *listed, int context) {
    std::vector<llama_token> ids;
    for (char *id = strtok(listed, ","); id; id = strtok(nullptr, ",")) ids.push_back(atoi(id));
    int count = ids.size();
    llama_context_params params = llama_context_default_params();
    params.n_ctx = context;
    params.n_batch = params.n_ubatch = count;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context *running = llama_init_from_model(model, params);
    llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (!running || llama_decode(running, batch)) return 1;
    int size = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int i = 0; i < count; i++) fwrite(llama_get_logits_ith(running, i), 4, size, stdout);
    return 0;
}

int main(int count, char **arguments) {
    llama_log_set([](ggml_log_level level, const char *text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    }, nullptr);
    if (getenv("GGML_BACKENDS")) ggml_backend_load_all_from_path(getenv("GGML_BACKENDS"));
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.vocab_only = !strcmp(arguments[2], "tokens");
    llama_model *model = llama_model_load_from_file(arguments[1], params);
    if (!model) return 1;
    if (params.vocab_only) return tokens(llama_model_get_vocab(model), atoi(arguments[3]));
    return logits(model, arguments[3], atoi(arguments[4]));
}
