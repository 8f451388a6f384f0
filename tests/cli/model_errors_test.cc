// What is said about models that are not there, or stored in a way that LiteCache does not read.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 8,
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
    "max_position_embeddings": 16, "torch_dtype": "float32")";

std::string Config(const std::string& more = "") { return kConfig + more + "}"; }

struct Case {
  std::string name;
  std::map<std::string, std::string> files;  // of the model's directory
  std::vector<std::string> parts;            // of the error
  std::string model = {};                    // named in the directory's place, which it begins with
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const std::string kIndex =
    R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})";
const std::string kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n";

class ModelErrorTest : public ::testing::TestWithParam<Case> {};

TEST_P(ModelErrorTest, NamesTheCauseAndTheFix) {
  const TemporaryDirectory directory;
  for (const auto& [name, text] : GetParam().files) directory.Write(name, text);
  const std::string model = GetParam().model.empty() ? directory.path().string()
                            : GetParam().model[0] == '/'
                                ? directory.path().string() + GetParam().model
                                : GetParam().model;
  const auto result = RunProgram({"generate", "--model", model, "x"},
                                 {.environment = {"HF_HUB_CACHE=" + directory.path().string()}});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.out, "");
  for (const std::string& part : GetParam().parts) EXPECT_THAT(result.err, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelErrorTest,
    ::testing::Values(
        Case{"GgufOfAnotherVersion",
             {{"model.gguf", "GGUF...."}},
             {"model.gguf: is GGUF version 774778414", "convert the model again"},
             "/model.gguf"},
        Case{"GgufByItsBytes", {{"model", "GGUF"}}, {"/model: 4 bytes at 4 go beyond"}, "/model"},
        Case{"GgufByItsName", {{"a.gguf", "x"}}, {"a.gguf: ", "is the download complete?"}},
        Case{"GgufThatIsALfsPointer",
             {{"a.gguf", kPointer}},
             {"a.gguf: is a Git LFS pointer", "git lfs pull"}},
        Case{"SeveralGgufModels",
             {{"a.Q4_K_M.gguf", ""},
              {"a.Q8_0-00001-of-00002.gguf", ""},
              {"a.Q8_0-00002-of-00002.gguf", ""},
              {"mmproj-a.gguf", ""}},
             {"several GGUF models (a.Q4_K_M.gguf, a.Q8_0-00001-of-00002.gguf): name one"}},
        Case{"OneFile",
             {{"model.safetensors", "x"}},
             {"is a file; name the model's directory", "or a GGUF file"},
             "/model.safetensors"},
        Case{"OtherQuantization",
             {{"config.json", Config(R"(, "quantization_config": {"quant_method": "hqq"})")}},
             {"config.json: field 'quantization_config.quant_method' = \"hqq\"",
              "the model that the weights were made from"}},
        Case{"Gptq",
             {{"config.json",
               Config(R"(, "quantization_config": {"quant_method": "gptq", "bits": 3})")}},
             {"'quantization_config.bits' = 3", "4 and 8 are supported"}},
        Case{"CompressedTensors",
             {{"config.json",
               Config(R"(, "compression_config": {"quant_method": "compressed-tensors"})")}},
             {"'compression_config.format' is missing"}},
        Case{"LfsPointerForWeights",
             {{"config.json", Config()}, {"model.safetensors", kPointer}},
             {"model.safetensors: is a Git LFS pointer", "git lfs pull", "hf download"}},
        Case{"LfsPointerForTokenizer",
             {{"config.json", Config()}, {"tokenizer.json", kPointer}},
             {"tokenizer.json: is a Git LFS pointer"}},
        Case{"Adapter",
             {{"adapter_config.json", R"({"base_model_name_or_path": "org/base"})"},
              {"adapter_model.safetensors", ""}},
             {"it is an adapter (LoRA) of org/base", "merge_and_unload()"}},
        Case{"AdapterThatIsDamaged", {{"adapter_config.json", "{"}}, {"an adapter (LoRA), not"}},
        Case{"PyTorchBin",
             {{"config.json", Config()},
              {"pytorch_model-00001-of-00002.bin", ""},
              {"pytorch_model-00002-of-00002.bin", ""}},
             {"not from pytorch_model-00001-of-00002.bin, pytorch_model-00002", "save_pretrained"}},
        Case{
            "MissingShard",
            {{"config.json", Config()},
             {"model.safetensors.index.json", kIndex},
             {"model-1.safetensors", ""}},
            {"1 of the 2 files of weights", "is missing, e.g. model-2.safetensors", "hf download"}},
        Case{"MissingIndex",
             {{"config.json", Config()}, {"model-1.safetensors", ""}},
             {"there are model-1.safetensors; is the download complete?"}},
        Case{"NoSuchModel",
             {},
             {"org/name: no such file or directory", "`hf download org/name`", "huggingface_hub"},
             "org/name"},
        Case{"NoSuchRevision", {}, {"`hf download org/name --revision v2`"}, "org/name@v2"},
        Case{"NoSuchPath", {}, {"/models/name: no such file or directory"}, "/models/name"}),
    [](const auto& info) { return info.param.name; });

// Also where the engine, which programs call, names the member of a struct.
TEST(ModelError, ValuesAreNamedByTheirFlag) {
  const auto error = [](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"generate", "--model", SharedModel().path(), "x", "--device", "cpu"});
    const auto result = RunProgram(more);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(error({"-c", "4096"}), HasSubstr("error: --max-context = 4096 is not between"));
  EXPECT_THAT(error({"--weights-on-device", "50%"}), HasSubstr("error: --weights-on-device = 0.5"));
  EXPECT_THAT(error({"--temp", "-1"}), HasSubstr("error: --temperature = -1 is not"));
  EXPECT_THAT(error({"--top-p", "2"}), HasSubstr("error: --top-p = 2 is not"));
}

}  // namespace
}  // namespace litecache::testing
