# Every package the build uses (Debian names in scripts/packages.txt).

find_package(PkgConfig REQUIRED)

# spdlog and fmt header-only: librueda then needs neither at run time.
find_path(RUEDA_SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
find_path(RUEDA_FMT_INCLUDE fmt/format.h REQUIRED)
add_library(rueda_spdlog INTERFACE)
target_compile_definitions(rueda_spdlog INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
target_include_directories(rueda_spdlog SYSTEM INTERFACE ${RUEDA_SPDLOG_INCLUDE} ${RUEDA_FMT_INCLUDE})

find_path(RUEDA_PROTOZERO_INCLUDE protozero/pbf_reader.hpp REQUIRED)
add_library(rueda_protozero INTERFACE)
target_include_directories(rueda_protozero SYSTEM INTERFACE ${RUEDA_PROTOZERO_INCLUDE})

# Highway: headers only, the dispatch table is ours (collectives/kernels/README.md).
find_path(RUEDA_HIGHWAY_INCLUDE hwy/highway.h REQUIRED)

# libsodium, static: HMAC, random bytes and constant-time comparison for the handshake.
find_path(RUEDA_SODIUM_INCLUDE sodium.h REQUIRED)
find_library(RUEDA_SODIUM_LIBRARY NAMES libsodium.a REQUIRED)
add_library(rueda_sodium INTERFACE)
target_include_directories(rueda_sodium SYSTEM INTERFACE ${RUEDA_SODIUM_INCLUDE})
target_link_libraries(rueda_sodium INTERFACE ${RUEDA_SODIUM_LIBRARY})

# Open MPI, for librueda_mpi.so alone; without it everything else is built.
pkg_check_modules(RUEDA_OPENMPI IMPORTED_TARGET QUIET ompi-c)

# The launcher's.
find_path(RUEDA_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)

# The tests': Catch2 v2 and libprotobuf, the oracle of proto/.
if(RUEDA_BUILD_TESTS)
  find_package(Catch2 2 REQUIRED)
  find_package(Protobuf REQUIRED)
endif()
