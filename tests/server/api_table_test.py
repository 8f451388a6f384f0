"""What the server does with endpoints and fields of llama.cpp's server, vLLM and OpenAI, asked of the program itself.

usage: api_table_test.py PROGRAM MODEL_DIRECTORY [--write]
Compares the answers with docs/reference/api-table.md; --write makes that file anew.
"""

import json
import pathlib
import sys
import urllib.error

import program

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/api-table.md"
HEAD = """# Endpoints and fields

This page is written by `tests/server/api_table_test.py PROGRAM MODEL --write` from the answers of the program; the test suite compares the two. The columns llama.cpp and vLLM say whether
the documentation or source of these servers, as of November 2026, has the endpoint or field. What the fields mean is on the page [server](server.md#fields).

- **yes**: the server does what the field asks for. Labels such as `user` ask for nothing.
- model: depends on the model's chat template or tokenizer. The page was written with the shipped model.
- ignored: the answer is the same without the field; `--strict-fields` refuses it.
- refused: the field would change the answer; the request gets an error that names it.

"""
# Errors about what another model might have.
OF_MODEL = ("chat template does not support", "the tokenizer of")
SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
WORD = {"type": "function", "name": "f", "parameters": SCHEMA}

# Method, path, a body; whether llama.cpp's server and vLLM have it.
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
TEXT = {"prompt": "x", "max_tokens": 1}
ENDPOINTS = [
    ("POST", "/v1/chat/completions", CHAT, "both"), ("POST", "/chat/completions", CHAT, "llama.cpp"),
    ("POST", "/v1/completions", TEXT, "both"), ("POST", "/completions", TEXT, ""),
    ("POST", "/completion", {"prompt": "x", "n_predict": 1}, "llama.cpp"),
    ("POST", "/infill", {"input_prefix": "x", "input_suffix": "y"}, "llama.cpp"),
    ("POST", "/v1/responses", {"input": "x", "max_output_tokens": 1}, "both"),
    ("POST", "/v1/messages", CHAT, "both"), ("POST", "/v1/messages/count_tokens", CHAT, "both"),
    ("POST", "/v1/embeddings", {"input": "x"}, "both"), ("POST", "/v1/rerank", {"query": "x", "documents": ["y"]}, "both"),
    ("POST", "/tokenize", {"prompt": "x"}, "both"), ("POST", "/detokenize", {"tokens": [5]}, "both"),
    ("POST", "/apply-template", CHAT, "llama.cpp"),
    ("GET", "/v1/models", None, "both"), ("GET", "/models", None, "llama.cpp"), ("GET", "/health", None, "both"),
    ("GET", "/ping", None, "vLLM"), ("GET", "/version", None, "vLLM"), ("GET", "/metrics", None, "both"),
    ("GET", "/props", None, "llama.cpp"), ("GET", "/slots", None, "llama.cpp"),
    ("GET", "/lora-adapters", None, "llama.cpp"), ("GET", "/stats", None, ""),
]

# Field, a value that asks for something, who has it, fields that must be with it.
SAMPLING = [
    ("temperature", 0.5, "both"), ("top_p", 0.5, "both"), ("top_k", 5, "both"), ("min_p", 0.1, "both"),
    ("typical_p", 0.5, "llama.cpp"), ("top_n_sigma", 1, "llama.cpp"), ("mirostat", 2, "llama.cpp"),
    ("dynatemp_range", 0.5, "llama.cpp"), ("dry_multiplier", 0.8, "llama.cpp"),
    ("xtc_probability", 0.5, "llama.cpp"), ("samplers", ["top_k"], "llama.cpp"), ("min_keep", 2, "llama.cpp"),
    ("repetition_penalty", 1.1, "vLLM"), ("repeat_penalty", 1.1, "llama.cpp"),
    ("presence_penalty", 0.5, "both"), ("frequency_penalty", 0.5, "both"), ("seed", 1, "both"),
    ("logit_bias", {"5": 1}, "both"), ("n", 2, "both"), ("use_beam_search", True, "vLLM"),
    ("length_penalty", 2.0, "vLLM"), ("watermarking", True, "vLLM"), ("bad_words", ["y"], "vLLM"),
    ("allowed_token_ids", [5], "vLLM"), ("stop", ["y"], "both"), ("stop_token_ids", [5], "vLLM"),
    ("include_stop_str_in_output", True, "vLLM"), ("ignore_eos", True, "both"), ("min_tokens", 1, "vLLM"),
    ("skip_special_tokens", False, "vLLM"), ("spaces_between_special_tokens", False, "vLLM"),
    ("truncate_prompt_tokens", 5, "vLLM"), ("t_max_predict_ms", 5, "llama.cpp"), ("n_predict", 1, "llama.cpp"),
    ("prompt_logprobs", 1, "vLLM"), ("logprob_token_ids", [5], "vLLM"), ("return_token_ids", True, "vLLM"),
    ("return_tokens_as_token_ids", True, "vLLM"), ("n_probs", 1, "llama.cpp"),
    ("response_format", {"type": "json_object"}, "both"),
    ("structured_outputs", {"json": SCHEMA}, "vLLM"), ("guided_json", SCHEMA, ""),
    ("json_schema", SCHEMA, "llama.cpp"), ("grammar", 'root ::= "x"', "llama.cpp"),
    ("stream_options", {"include_usage": True}, "both"), ("cache_prompt", False, "llama.cpp"),
    ("id_slot", 0, "llama.cpp"), ("n_keep", 1, "llama.cpp"), ("timings_per_token", True, "llama.cpp"),
    ("return_progress", True, "llama.cpp"), ("lora", [{"id": 0, "scale": 1}], "llama.cpp"),
    ("priority", 1, "vLLM"), ("request_id", "r", "vLLM"), ("cache_salt", "s", "vLLM"), ("user", "u", "vLLM"),
    ("kv_transfer_params", {"a": 1}, "vLLM"), ("thinking_token_budget", 5, "vLLM"),
    ("repetition_detection", {"max_pattern_size": 2}, "vLLM"),
]
TABLES = [
    ("/v1/chat/completions", CHAT, SAMPLING + [
        ("max_tokens", 1, "both"), ("max_completion_tokens", 1, "both"), ("logprobs", True, "both"),
        ("tools", [TOOL], "both"), ("parallel_tool_calls", False, "both"),
        ("chat_template_kwargs", {"a": 1}, "both"), ("add_generation_prompt", False, "both"),
        ("continue_final_message", True, "both"), ("documents", [{"text": "t"}], "vLLM"),
        ("reasoning_effort", "low", "both"), ("include_reasoning", False, "vLLM"),
        ("reasoning_format", "none", "llama.cpp"), ("echo", True, "vLLM"),
        ("add_special_tokens", True, "vLLM"), ("store", True, ""), ("service_tier", "flex", ""),
        ("metadata", {"a": "b"}, ""), ("verbosity", "low", ""), ("modalities", ["audio"], ""),
        ("web_search_options", {"a": 1}, ""), ("functions", [{"name": "f"}], "")]),
    ("/v1/completions", TEXT, SAMPLING + [
        ("max_tokens", 1, "both"), ("logprobs", 1, "both"), ("echo", True, "vLLM"), ("suffix", "y", "vLLM"),
        ("best_of", 2, ""), ("add_special_tokens", False, "vLLM"), ("prompt_embeds", "e", "vLLM")]),
    ("/v1/responses", {"input": "x", "max_output_tokens": 1}, [
        ("instructions", "i", "both"), ("max_output_tokens", 1, "both"), ("temperature", 0.5, "both"),
        ("top_p", 0.5, "both"), ("tools", [WORD], "both"), ("tools of type custom", [{"type": "custom", "name": "p"}], ""),
        ("tools of type web_search", [{"type": "web_search"}], "vLLM"), ("tools of type mcp", [{"type": "mcp"}], "vLLM"),
        ("tools of type file_search", [{"type": "file_search"}], ""), ("parallel_tool_calls", False, "both"),
        ("text", {"format": {"type": "json_object"}}, "both"), ("include", ["reasoning.encrypted_content"], "both"),
        ("reasoning", {"effort": "low"}, "both"), ("store", True, "vLLM"), ("previous_response_id", "r", "vLLM"),
        ("background", True, "vLLM"), ("truncation", "auto", "vLLM"), ("prompt_cache_key", "k", ""),
        ("metadata", {"a": "b"}, "both"), ("max_tool_calls", 1, "vLLM"), ("service_tier", "flex", "vLLM"),
        ("top_logprobs", 1, "vLLM"), ("conversation", "c", ""), ("prompt", {"id": "p"}, "vLLM"), ("user", "u", "both")]),
    ("/v1/messages", CHAT, [
        ("max_tokens", 1, "both"), ("system", "s", "both"), ("stop_sequences", ["y"], "both"),
        ("temperature", 0.5, "both"), ("top_p", 0.5, "both"), ("top_k", 5, "both"),
        ("tools", [{"name": "f", "input_schema": SCHEMA}], "both"),
        ("thinking", {"type": "disabled"}, "llama.cpp"),
        ("output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}, "vLLM"),
        ("metadata", {"user_id": "u"}, "both"), ("service_tier", "standard_only", ""),
        ("context_management", {"edits": []}, ""), ("mcp_servers", [{"url": "u"}], ""), ("container", "c", "")]),
]


def ask(server, path, body):
    """The status of an answer, and its text."""
    try:
        with server.open(path, body) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def endpoint(server, path, body):
    status, text = ask(server, path, body)
    if status == 200:
        return "**yes**"
    assert status == 404 or any(part in text for part in OF_MODEL), (path, status, text)
    return "" if status == 404 else "model"


def verdict(strict, lenient, path, body):
    status, _ = ask(lenient, path, body)
    strictly, text = ask(strict, path, body)
    if strictly == 200:
        return "**yes**"
    assert strictly == 400, (path, body, strictly, text)
    if any(part in text for part in OF_MODEL):
        return "model"
    return "ignored" if status == 200 else "refused"


def has(who):
    return " | ".join("yes" if who in ("both", name) else "" for name in ("llama.cpp", "vLLM"))


def page():
    strict, lenient = program.Server("--strict-fields"), program.Server()
    lines = [HEAD, "| endpoint | here | llama.cpp | vLLM |", "| --- | --- | --- | --- |"]
    for method, path, body, who in ENDPOINTS:
        lines.append(f"| `{method} {path}` | {endpoint(lenient, path, body)} | {has(who)} |")
    for path, body, fields in TABLES:
        assert verdict(strict, lenient, path, body) == "**yes**", path
        lines += ["", f"## {path}", "", "| field | here | llama.cpp | vLLM |", "| --- | --- | --- | --- |"]
        for name, value, who in sorted(fields, key=lambda field: field[0].lower()):
            more = {"stream": True} if name in ("stream_options", "return_progress") else {}
            here = verdict(strict, lenient, path, {**body, **more, name.split()[0]: value})
            lines.append(f"| `{name}` | {here} | {has(who)} |")
    assert strict.stop() == 0 and lenient.stop() == 0
    return "\n".join(lines) + "\n"


def main():
    found = page()
    if "--write" in sys.argv:
        PAGE.write_text(found)
    elif not PAGE.exists() or PAGE.read_text() != found:
        wrong = set(found.splitlines()) ^ set(PAGE.read_text().splitlines() if PAGE.exists() else [])
        sys.exit(f"{PAGE} is not what the server does: {json.dumps(sorted(wrong), indent=1)}; "
                 "write it anew with --write")


if __name__ == "__main__":
    main()
