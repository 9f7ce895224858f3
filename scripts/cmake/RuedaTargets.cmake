# rueda_add_library and rueda_add_test: one target per layer, warnings, sanitizers, all in one place.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# No names of folders in what is built: the same bytes in every clone, so that a compiler cache serves them all. A debugger
# that is started in the repository finds the sources.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)

# Flags of everything that is ours. Floating-point contraction is off: an FMA on one instruction set and none on another
# would give different bits.
add_library(rueda_flags INTERFACE)
target_compile_options(rueda_flags INTERFACE
  -Wall -Wextra -Wshadow -Wno-missing-field-initializers
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>  # GCC bug 105651: false alarms in std::string
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>
  -ffp-contract=off)
if(RUEDA_WARNINGS_AS_ERRORS)
  target_compile_options(rueda_flags INTERFACE -Werror)
endif()
# Catch2's own implementation is not under test; without optimization and sanitizers it builds in a tenth of the time.
set(rueda_is_test_main $<STREQUAL:$<TARGET_PROPERTY:NAME>,rueda_test_main>)
target_compile_options(rueda_flags INTERFACE $<${rueda_is_test_main}:-O0>)
if(RUEDA_SANITIZE)
  # -O1 -g1 halves the building time and keeps the lines in reports. g++ sees uninitialized values in its own
  # library's headers as soon as it sanitizes; the other presets keep that warning.
  target_compile_options(rueda_flags INTERFACE $<$<NOT:${rueda_is_test_main}>:-fsanitize=${RUEDA_SANITIZE};-O1>
    -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(rueda_flags INTERFACE -fsanitize=${RUEDA_SANITIZE})
endif()
if(RUEDA_FUZZ)
  # Without "function": clang 14 cannot assemble its marks for lambdas.
  target_compile_options(rueda_flags INTERFACE -fsanitize=fuzzer-no-link -fno-sanitize=function)
endif()
target_include_directories(rueda_flags INTERFACE ${PROJECT_SOURCE_DIR})
find_package(Threads REQUIRED)
target_link_libraries(rueda_flags INTERFACE Threads::Threads)

# Most of a compilation goes into the standard library's templates, over and over. The sanitizer presets and scripts/setup
# compile sixteen files of most targets as one, which makes them once. The dev preset compiles everything file by file, and so
# the include that somebody has forgotten is found.
#
# CMake's own UNITY_BUILD writes the full path of each source, which is another one in each clone.
function(rueda_unite target)
  # g++ takes what is included for a header, where unnamed namespaces would be a mistake.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  # At the end of the folder's list, when all is known of its sources.
  cmake_language(EVAL CODE "cmake_language(DEFER CALL rueda_unite_sources ${target})")
endfunction()

# Sources with options of their own stay alone, and those that say SKIP_UNITY_BUILD_INCLUSION.
function(rueda_unite_sources target)
  get_target_property(sources ${target} SOURCES)
  set(alone)
  set(together)
  foreach(source IN LISTS sources)
    set(has_its_own "")
    foreach(property SKIP_UNITY_BUILD_INCLUSION COMPILE_OPTIONS COMPILE_DEFINITIONS)
      get_source_file_property(value ${source} ${property})
      if(value)
        set(has_its_own ${property})
      endif()
    endforeach()
    if(has_its_own OR NOT source MATCHES "\\.cc$")
      list(APPEND alone ${source})
    else()
      list(APPEND together ${source})
    endif()
  endforeach()
  set(united)
  while(together)
    list(SUBLIST together 0 16 batch)
    list(REMOVE_ITEM together ${batch})
    set(content "")
    foreach(source IN LISTS batch)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(APPEND content "#include \"${source}\"\n")
    endforeach()
    list(LENGTH united number)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${content}")
    list(APPEND united ${file})
  endwhile()
  set_property(TARGET ${target} PROPERTY SOURCES ${alone} ${united})
endfunction()

# rueda_add_library(base SOURCES a.cc b.cc DEPS rueda::x [UNITE] [SLOW])  ->  target rueda_base, alias rueda::base
# UNITE: where RUEDA_UNITY says so; the names of its files, unnamed namespaces included, do not clash. SLOW: it waits for
# others most of the time and need not be fast; -O1 compiles it in two thirds of the time of -O3.
function(rueda_add_library name)
  cmake_parse_arguments(ARG "UNITE;SLOW" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(rueda_${name} STATIC ${ARG_SOURCES})
  add_library(rueda::${name} ALIAS rueda_${name})
  target_link_libraries(rueda_${name} PUBLIC rueda_flags ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(ARG_SLOW)
    target_compile_options(rueda_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(RUEDA_UNITY STREQUAL ALL AND ARG_UNITE)
    rueda_unite(rueda_${name})
  endif()
endfunction()

# rueda_add_test(status_test SOURCES base/status_test.cc DEPS rueda::base [LABELS unit] [TIMEOUT 120] [COST 60] [ARGS ...] [UNITE] [NO_TSAN])
# A Catch2 program of its own; `ctest -L <label>` picks by label. Labels: unit, multiprocess, slow. COST: about how many
# seconds it takes, of those that take long: they begin first, so that no core is idle at the end. NO_TSAN: its threads
# meet in libraries that ThreadSanitizer does not see into.
function(rueda_add_test name)
  cmake_parse_arguments(ARG "UNITE;NO_TSAN" "TIMEOUT;COST" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE rueda_flags ${ARG_DEPS} rueda_test_main)
  # The tests' own code need not be fast; -O1 compiles it in two thirds of the time of -O3.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(RUEDA_UNITY STREQUAL ALL AND ARG_UNITE)
    rueda_unite(${name})
  endif()
  if(RUEDA_SANITIZE STREQUAL "thread")
    # Not the long ones in which there is nothing to see for it; an exclusion alone would let hidden ones in.
    list(APPEND ARG_ARGS "~[one_thread]~[.]")
  endif()
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(RUEDA_SANITIZE STREQUAL "thread" AND ARG_NO_TSAN)
    set_tests_properties(${name} PROPERTIES DISABLED ON)
  endif()
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()
