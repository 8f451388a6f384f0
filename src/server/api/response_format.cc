#include "server/api/response_format.h"

#include "base/error.h"

namespace litecache::server {
namespace {

void SetSchema(const std::string& field, const Json& schema, const ServedModel& model,
               Request* request) {
  if (request->constraint != nullptr) {
    throw BadRequest(field, "'{}': the format of the answer is set twice", field);
  }
  request->constraint = MakeGrammar(field, [&] { return model.grammars->OfSchema(schema); });
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

void SetObject(const std::string& field, const ServedModel& model, Request* request) {
  if (request->constraint != nullptr) {
    throw BadRequest(field, "'{}': the format of the answer is set twice", field);
  }
  request->constraint = MakeGrammar(field, [&] { return model.grammars->OfObject(); });
}

}  // namespace

void ReadResponseFormat(Fields& fields, const ServedModel& model, Request* request) {
  const Json* object = fields.Object("response_format");
  if (object == nullptr) return;
  Fields format(*object, fields.Path("response_format."));
  const std::string type = ReadType(format);
  if (type == "json_object") SetObject(fields.Path("response_format"), model, request);
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

void ReadGuidedJson(Fields& fields, const ServedModel& model, Request* request) {
  const auto read = [&](Fields& from, const char* name) {
    const Json* schema = from.Find(name);
    if (schema == nullptr) return;
    Json parsed = *schema;
    if (schema->is_string()) {
      auto limits = io::JsonLimits::OfRequest();
      parsed = ParseText(schema->get_ref<const std::string&>(), from.Path(name),
                         fmt::format("'{}', a JSON schema,", from.Path(name)), &limits);
    }
    if (!parsed.is_object()) from.Fail(name, "a JSON schema is expected");
    SetSchema(from.Path(name), parsed, model, request);
  };
  read(fields, "guided_json");
  const Json* outputs = fields.Object("structured_outputs");
  if (outputs == nullptr) return;
  Fields inner(*outputs, fields.Path("structured_outputs."));
  read(inner, "json");
  if (inner.Bool("json_object").value_or(false)) {
    SetObject(inner.Path("json_object"), model, request);
  }
  for (const char* name : {"regex", "choice", "grammar", "structural_tag"}) inner.Refuse(name);
  inner.Finish();
}

}  // namespace litecache::server
