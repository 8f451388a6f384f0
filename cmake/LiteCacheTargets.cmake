# lc_sources(VARIABLE folder ...): the C++ sources in folders and their subfolders.
# A file whose name ends in _cuda is only part of CUDA builds; so is every .cu file.
function(lc_sources variable)
  set(all "")
  foreach(folder IN LISTS ARGN)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${folder}/*.cc ${folder}/*.cu)
    list(APPEND all ${found})
  endforeach()
  if(NOT LITECACHE_HAVE_CUDA)
    list(FILTER all EXCLUDE REGEX "_cuda\\.cc$|\\.cu$")
  endif()
  set(${variable} ${all} PARENT_SCOPE)
endfunction()

# lc_compile_at_once(target whole): the sources of each folder, or of all folders if `whole`, are one translation unit,
# which reads the headers and compiles the libraries' templates once. Highway's files stay alone, because they include themselves once an
# instruction set, and those of CUDA; CMake leaves out files with options of their own.
function(lc_compile_at_once target whole)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP
    UNITY_BUILD_CODE_BEFORE_INCLUDE "// NOLINTNEXTLINE(bugprone-suspicious-include)")
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(path ${source} ABSOLUTE)
    if(NOT path MATCHES "\\.cc$" OR path MATCHES "_cuda\\.cc$|/cuda/[^/]*$" OR NOT EXISTS ${path})
      continue()  # not C++, or generated
    endif()
    file(STRINGS ${path} highway REGEX "hwy/foreach_target\\.h" LIMIT_COUNT 1)
    if(NOT highway)
      set(group all)
      if(NOT whole)
        get_filename_component(group ${path} DIRECTORY)
        get_filename_component(group ${group} NAME)
      endif()
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()

# lc_add_library(NAME [SOURCES a.cc ...] DEPS target ... [PRIVATE_DEPS target ...] [PRECOMPILED header ...] [WHOLE])
# A static library for a folder under src/, named litecache_<folder>, of all sources in the folder unless SOURCES lists
# them; includes are relative to src/. PRECOMPILED: large library headers that most of its sources include; sources
# still include what they use. With LITECACHE_UNITY no header is precompiled, and folders are one translation unit each;
# WHOLE: all folders together.
function(lc_add_library name)
  cmake_parse_arguments(ARG "WHOLE" "" "SOURCES;DEPS;PRIVATE_DEPS;PRECOMPILED" ${ARGN})
  if(NOT ARG_SOURCES)
    lc_sources(ARG_SOURCES ${CMAKE_CURRENT_SOURCE_DIR})
  endif()
  add_library(litecache_${name} STATIC ${ARG_SOURCES})
  if(LITECACHE_UNITY)
    lc_compile_at_once(litecache_${name} ${ARG_WHOLE})
  endif()
  target_include_directories(litecache_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(litecache_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(LITECACHE_HAVE_CUDA)
    target_compile_definitions(litecache_${name} PRIVATE LITECACHE_CUDA)
  endif()
  if(ARG_PRECOMPILED AND LITECACHE_PRECOMPILED AND NOT LITECACHE_UNITY)
    target_precompile_headers(litecache_${name} PRIVATE ${ARG_PRECOMPILED})
  endif()
endfunction()

# lc_add_cuda_library(NAME SOURCES a.cu ...): a static library of kernels, named litecache_<NAME>. nvcc compiles them,
# so they must not depend on host-only code.
function(lc_add_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_library(litecache_${name} STATIC ${ARG_SOURCES})
  target_include_directories(litecache_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  # fmt 9 treats nvcc as a compiler without constexpr functions, although version 13 has them.
  target_compile_definitions(litecache_${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  target_link_libraries(litecache_${name} PUBLIC litecache_device PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
endfunction()

# Highway compiles each kernel once per target. SSSE3 and SSE4 would add compile time for machines older than 2013,
# which use the scalar baseline.
set(LC_HIGHWAY_TARGETS "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4)")

# A bundle (scripts/bundle) has its libraries in lib/ next to the program. RPATH rather than RUNPATH, because it also
# applies to the dependencies of the libraries.
function(lc_find_libraries_beside program)
  set_target_properties(${program} PROPERTIES BUILD_RPATH "$ORIGIN/lib" RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endfunction()

# lc_add_test(NAME SOURCES a.cc ... DEPS target ...)
# A GoogleTest program, registered with CTest as one test per program (fixtures are loaded once).
# LC_SOURCE_DIR: where tests find fixtures and models.
function(lc_add_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_definitions(${name} PRIVATE LC_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LC_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 reports overflows in string concatenation that do not exist (GCC bug 105651).
    target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overread>")
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(LITECACHE_PRECOMPILED)
    if(NOT TARGET litecache_test_headers)
      # An executable like the tests: a library would be compiled with different position-independent code.
      file(WRITE ${PROJECT_BINARY_DIR}/test_headers.cc "int main() {}\n")
      add_executable(litecache_test_headers EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/test_headers.cc)
      target_link_libraries(litecache_test_headers PRIVATE fmt::fmt Threads::Threads GTest::gtest GTest::gmock)
      target_precompile_headers(litecache_test_headers PRIVATE <fmt/format.h> <gmock/gmock.h> <gtest/gtest.h>)
    endif()
    target_precompile_headers(${name} REUSE_FROM litecache_test_headers)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set(timeout 900)
  if(LITECACHE_SANITIZE MATCHES "thread")
    set(timeout 3600)  # many times slower
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout})
endfunction()
