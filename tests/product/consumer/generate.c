/* generate_c MODEL BODY: prints the answer to a request to /v1/completions. */
#include <stdio.h>

#include "litecache/litecache.h"

int main(int argc, char** argv) {
  litecache_engine* engine = NULL;
  litecache_answer* answer = NULL;
  char* text = NULL;
  const char* options = "{\"device\": \"cpu\", \"threads\": 1, \"max_context\": \"1k\"}";
  if (argc != 3) return 2;
  if (litecache_open("nowhere", options, &engine) != LITECACHE_FILE_ERROR) return 3;
  if (litecache_open(argv[1], "{\"thread\": 1}", &engine) != LITECACHE_INVALID_ARGUMENT) return 4;
  if (litecache_call(NULL, "/props", NULL, &text) != LITECACHE_INVALID_ARGUMENT) return 5;
  if (litecache_open(argv[1], options, &engine) != LITECACHE_OK ||
      litecache_start(engine, "/v1/completions", argv[2], &answer) != LITECACHE_OK ||
      litecache_next(answer, -1, &text) != LITECACHE_OK) {
    fprintf(stderr, "%s\n", litecache_error());
    return 1;
  }
  puts(text);
  litecache_free(text);
  if (litecache_next(answer, -1, &text) != LITECACHE_OK || text != NULL) return 6;
  litecache_release(answer);
  litecache_close(engine);
  return 0;
}
