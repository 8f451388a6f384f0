/* LiteCache for programs in C, and for every language that calls C.
 *
 *   litecache_engine* engine = NULL;
 *   if (litecache_open("path/to/model", "{\"threads\": 4}", &engine)) puts(litecache_error());
 *
 *   litecache_answer* answer = NULL;
 *   litecache_start(engine, "/v1/completions", "{\"prompt\": \"Once\"}", &answer);
 *   char* text = NULL;
 *   litecache_next(answer, -1, &text);  // {"choices": [{"text": ...
 *
 * Requests and answers are those of the server (docs/reference/server.md), without HTTP. Texts are
 * UTF-8; those named json are JSON. Release the texts that functions return with litecache_free().
 *
 * A function that returns a status sets its last argument only if the status is LITECACHE_OK;
 * otherwise litecache_error() has the message. Functions may be called from any thread; where only
 * one thread at a time may call, the function's comment says so. */
#ifndef LITECACHE_LITECACHE_H_
#define LITECACHE_LITECACHE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum litecache_status {
  LITECACHE_OK = 0,
  LITECACHE_ERROR = 1,            /* anything else, such as a failed GPU or no memory */
  LITECACHE_INVALID_ARGUMENT = 2, /* an option, field or argument has a value that cannot work */
  LITECACHE_FILE_ERROR = 3,       /* a file is missing, unreadable or malformed */
  LITECACHE_UNSUPPORTED = 4,      /* a feature that the engine does not have */
  LITECACHE_CAPACITY_ERROR = 5,   /* a memory budget or the context would be exceeded */
  LITECACHE_TIMEOUT = 6,          /* litecache_next(): nothing came in time */
  LITECACHE_CANCELLED = 7         /* litecache_next(): litecache_cancel() ended the answer */
} litecache_status;

typedef struct litecache_engine litecache_engine;
typedef struct litecache_answer litecache_answer;
typedef struct litecache_kv litecache_kv;

/* "0.2.0" */
const char* litecache_version(void);
/* The message of this thread's last error, valid until its next one. */
const char* litecache_error(void);
void litecache_free(void* memory);

/* Runs the program `litecache` with these arguments, argv[0] being its name; returns its exit
 * status. Call it in a process of its own: it handles signals. */
int litecache_main(int argc, char** argv);

/* The options of the engine as a JSON array of {"name", "flag", "type", "values", "help", "group",
 * "policies", "default"}. Those of the KV cache alone: kv_only != 0. */
litecache_status litecache_options(int kv_only, char** json);

/* ---- The engine ---- */

/* Loads a directory in Hugging Face's layout, a GGUF file, or org/name from the local Hugging Face
 * cache. `options`: a JSON object; keys are the names in litecache_options(), or the flags without
 * their dashes; values are what the command line takes, as strings, numbers or true and false.
 * "chat_template" (a file) is read as well. NULL: no options. "shape" (a published one, as in
 * `litecache serve --shape`): random weights instead of `model`, to measure speed. */
litecache_status litecache_open(const char* model, const char* options, litecache_engine** engine);
/* Release all answers before. NULL is ignored. */
void litecache_close(litecache_engine* engine);

/* Answers one of the server's paths that generate nothing, as JSON: /props, /stats, /tokenize,
 * /detokenize, /apply-template, /v1/messages/count_tokens. `body`: JSON; NULL where there is none.
 */
litecache_status litecache_call(litecache_engine* engine, const char* path, const char* body,
                                char** json);

/* Submits a request to /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages or
 * /infill. */
litecache_status litecache_start(litecache_engine* engine, const char* path, const char* body,
                                 litecache_answer** answer);
/* Waits up to `seconds` (negative: without limit) for the next part of an answer: of a stream the
 * server-sent events that are ready, otherwise the whole answer as JSON. *text is NULL after the
 * last part. An answer is read by one thread at a time. */
litecache_status litecache_next(litecache_answer* answer, double seconds, char** text);
/* Ends the answer at the next step; its memory is freed then. */
void litecache_cancel(litecache_answer* answer);
/* Cancels the answer if it has not ended. NULL is ignored. */
void litecache_release(litecache_answer* answer);

/* Log-probabilities of given tokens (teacher forcing). logprobs [count - 1] or NULL: of token i + 1
 * given those before it. logits [positions_count][vocab_size] or NULL: at these positions.
 * Tokens from index decode_from on are processed one at a time, in decode steps, in which the KV
 * policy acts as in generation; -1: all are processed as a prompt. */
litecache_status litecache_score(litecache_engine* engine, const int32_t* tokens, int64_t count,
                                 int64_t decode_from, const int64_t* positions,
                                 int64_t positions_count, float* logprobs, float* logits);

/* ---- The KV cache alone, on the CPU or a GPU (litecache/kv_cache.h) ---- */

typedef struct litecache_kv_part {
  int64_t sequence;
  int64_t rows;   /* 1 for a generated token */
  int32_t decode; /* 1: a generated token; 0: a chunk of a prompt, which attends all rows */
} litecache_kv_part;

/* Type of an array's elements. */
typedef enum litecache_dtype {
  LITECACHE_F32 = 0,
  LITECACHE_BF16 = 1,
  LITECACHE_F16 = 2
} litecache_dtype;

/* `options` as in litecache_open(), of those of the KV cache; device_memory and host_memory, the
 * budgets, have to be set. prefetch auto means 0. threads 0: one a core. f32_rows: store rows in
 * f32 instead of bf16. */
litecache_status litecache_kv_create(int64_t layers, int64_t q_heads, int64_t kv_heads,
                                     int64_t head_dim, int f32_rows, int threads,
                                     const char* options, litecache_kv** cache);
/* The same on the GPU of this number: arrays are in its memory and begin at multiples of 16 bytes,
 * device_memory are its bytes, those of host_memory are pinned. `stream`: a cudaStream_t of this
 * GPU, which stays the caller's; NULL: the default stream. litecache_kv_attend() enqueues its work
 * and returns: it comes after all that was enqueued on the stream before, and before what is
 * enqueued there afterwards. litecache_kv_end() waits for the step's work and reports its errors.
 * Destroy the cache before the stream. */
litecache_status litecache_kv_create_on_gpu(int64_t layers, int64_t q_heads, int64_t kv_heads,
                                            int64_t head_dim, int f32_rows, int gpu, void* stream,
                                            const char* options, litecache_kv** cache);
/* The stream of the caller's work from here on; the one before is not used again. Does nothing on
 * the CPU. */
litecache_status litecache_kv_use_stream(litecache_kv* cache, void* stream);
/* The functions of one cache are called by one thread at a time. */
void litecache_kv_destroy(litecache_kv* cache);
litecache_status litecache_kv_add(litecache_kv* cache, int64_t* sequence);
/* A new sequence with the rows of `parent`. */
litecache_status litecache_kv_fork(litecache_kv* cache, int64_t parent, int64_t* sequence);
litecache_status litecache_kv_remove(litecache_kv* cache, int64_t sequence);
litecache_status litecache_kv_length(litecache_kv* cache, int64_t sequence, int64_t* tokens);
/* Decode parts come first. */
litecache_status litecache_kv_begin(litecache_kv* cache, const litecache_kv_part* parts,
                                    int64_t count);
/* All arrays of one type, row-major: q and out [rows][q_heads][head_dim], k and v
 * [rows][kv_heads][head_dim], keys and queries after RoPE. Call it for all layers in order. */
litecache_status litecache_kv_attend(litecache_kv* cache, int64_t layer, litecache_dtype dtype,
                                     const void* q, const void* k, const void* v, float scale,
                                     void* out);
litecache_status litecache_kv_end(litecache_kv* cache);
/* The counters of kv_stats.h as JSON, those of every (layer, KV head) included. */
litecache_status litecache_kv_stats(litecache_kv* cache, char** json);

#ifdef __cplusplus
}
#endif

#endif /* LITECACHE_LITECACHE_H_ */
