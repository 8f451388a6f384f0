# Writes files into a C++ source, so that they become part of the program. Run at build time:
#   cmake -DOUTPUT=... -DFILES=a;b;... -P embed.cmake
# Each becomes an array of bytes in a table of (name, contents), in the order given.
set(arrays "")
set(table "")
set(index 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {\n${bytes}};\n")
  string(APPEND table "    {\"${name}\", {reinterpret_cast<const char*>(kFile${index}), sizeof(kFile${index})}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT}
"// Made by cmake/embed.cmake.
#include \"server/page/page.h\"

namespace litecache::server {
namespace {
${arrays}}  // namespace

const std::vector<EmbeddedFile>& EmbeddedFiles() {
  static const std::vector<EmbeddedFile> files = {
${table}  };
  return files;
}

}  // namespace litecache::server
")
