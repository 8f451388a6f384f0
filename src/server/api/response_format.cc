#include "server/api/response_format.h"

#include <set>

#include "base/error.h"

namespace litecache::server {
namespace {

template <typename Make>
void SetForm(const std::string& field, Request* request, const Make& make) {
  if (request->constraint != nullptr) {
    throw BadRequest(
        field, "'{}': the format of the answer is set twice: leave out one of the fields", field);
  }
  request->constraint = MakeGrammar(field, make);
}

void SetSchema(const std::string& field, const Json& schema, const ServedModel& model,
               Request* request) {
  SetForm(field, request, [&] { return model.grammars->OfSchema(schema); });
}

void SetObject(const std::string& field, const ServedModel& model, Request* request) {
  SetForm(field, request, [&] { return model.grammars->OfObject(); });
}

void ReadSchema(Fields& fields, const std::string& name, const ServedModel& model,
                Request* request) {
  const Json* schema = fields.Find(name);
  if (schema == nullptr) return;
  const std::string path = fields.Path(name);
  Json parsed = *schema;
  if (schema->is_string()) {
    auto limits = io::JsonLimits::OfRequest();
    parsed = ParseText(schema->get_ref<const std::string&>(), path,
                       fmt::format("'{}', a JSON schema,", path), &limits);
  }
  if (!parsed.is_object()) fields.Fail(name, "a JSON schema is expected");
  SetSchema(path, parsed, model, request);
}

void ReadGbnf(Fields& fields, const std::string& name, const ServedModel& model, Request* request) {
  const auto grammar = fields.String(name);
  if (!grammar || grammar->empty()) return;
  SetForm(fields.Path(name), request, [&] { return model.grammars->OfGbnf(*grammar); });
}

// The forms that are no JSON schemas.
void ReadForms(Fields& fields, const std::string& prefix, const ServedModel& model,
               Request* request) {
  if (const auto pattern = fields.String(prefix + "regex")) {
    SetForm(fields.Path(prefix + "regex"), request,
            [&] { return model.grammars->OfPattern(*pattern); });
  }
  if (const Json* list = fields.Array(prefix + "choice")) {
    std::set<std::string> texts;
    for (const Json& text : *list) {
      if (!text.is_string()) fields.Fail(prefix + "choice", "an array of strings is expected");
      texts.insert(text.get<std::string>());
    }
    if (texts.empty()) fields.Fail(prefix + "choice", "at least one string is expected");
    SetForm(fields.Path(prefix + "choice"), request,
            [&] { return model.grammars->OfChoices(texts); });
  }
  ReadGbnf(fields, prefix + "grammar", model, request);
}

// {"name", "description", "strict", "schema"}; takes the schema.
void ReadNamedSchema(Fields& fields, const ServedModel& model, Request* request) {
  const auto name = fields.String("name");
  if (!name || name->empty()) fields.Fail("name", "it is missing");
  fields.String("description");
  // Answers follow the schema in either case.
  fields.Bool("strict");
  const Json* schema = fields.Object("schema");
  if (schema == nullptr) fields.Fail("schema", "it is missing");
  SetSchema(fields.Path("schema"), *schema, model, request);
}

// The field "type" of a format.
std::string ReadType(Fields& format) {
  const auto type = format.String("type");
  if (!type || (*type != "text" && *type != "json_object" && *type != "json_schema")) {
    format.Fail("type", "text, json_object or json_schema is expected");
  }
  return *type;
}

}  // namespace

void ReadResponseFormat(Fields& fields, const ServedModel& model, Request* request) {
  const Json* object = fields.Object("response_format");
  if (object == nullptr) return;
  Fields format(*object, fields.Path("response_format."));
  const std::string type = ReadType(format);
  if (type == "json_object") {
    // With a schema: "schema" of llama.cpp's server, "value" of TGI, which is how Hugging Face's
    // client sends a json_schema.
    const char* const name = format.Has("value") ? "value" : "schema";
    const Json* schema = format.Object(name);
    if (schema != nullptr) SetSchema(format.Path(name), *schema, model, request);
    if (schema == nullptr) SetObject(fields.Path("response_format"), model, request);
  }
  if (type == "json_schema") {
    const Json* schema = format.Object("json_schema");
    if (schema == nullptr) format.Fail("json_schema", "it is missing");
    Fields inner(*schema, format.Path("json_schema."));
    ReadNamedSchema(inner, model, request);
    inner.Finish();
  }
  format.Finish();
}

Json ReadTextFormat(Fields& text, const ServedModel& model, Request* request) {
  const Json* object = text.Object("format");
  if (object == nullptr) return {{"type", "text"}};
  Fields format(*object, text.Path("format."));
  const std::string type = ReadType(format);
  if (type == "json_object") SetObject(text.Path("format"), model, request);
  if (type == "json_schema") ReadNamedSchema(format, model, request);
  format.Finish();
  return *object;
}

void ReadStructuredOutputs(Fields& fields, const ServedModel& model, Request* request) {
  for (const char* name : {"guided_json", "json_schema"}) ReadSchema(fields, name, model, request);
  ReadForms(fields, "guided_", model, request);
  ReadGbnf(fields, "grammar", model, request);
  const Json* outputs = fields.Object("structured_outputs");
  if (outputs == nullptr) return;
  Fields inner(*outputs, fields.Path("structured_outputs."));
  ReadSchema(inner, "json", model, request);
  if (inner.Bool("json_object").value_or(false)) {
    SetObject(inner.Path("json_object"), model, request);
  }
  ReadForms(inner, "", model, request);
  inner.Refuse("structural_tag");
  inner.Finish();
}

}  // namespace litecache::server
