# Every package the build uses (scripts/packages.txt has them for scripts/setup). All that is missing is named at once.

find_package(PkgConfig QUIET)

# rueda_find(PATH|LIBRARY|PROGRAM VARIABLE name debian-package)
set(rueda_missing "")
set(rueda_missing_packages "")
macro(rueda_find kind variable name package)
  if(${kind} STREQUAL PATH)
    find_path(${variable} ${name})
  elseif(${kind} STREQUAL LIBRARY)
    find_library(${variable} NAMES ${name})
  else()
    find_program(${variable} ${name})
  endif()
  if(NOT ${variable})
    string(APPEND rueda_missing "\n  ${name} (${package})")
    list(APPEND rueda_missing_packages ${package})
  endif()
endmacro()

# spdlog and fmt header-only: librueda then needs neither at run time.
rueda_find(PATH RUEDA_SPDLOG_INCLUDE spdlog/spdlog.h libspdlog-dev)
rueda_find(PATH RUEDA_FMT_INCLUDE fmt/format.h libfmt-dev)
add_library(rueda_spdlog INTERFACE)
target_compile_definitions(rueda_spdlog INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
target_include_directories(rueda_spdlog SYSTEM INTERFACE ${RUEDA_SPDLOG_INCLUDE} ${RUEDA_FMT_INCLUDE})

rueda_find(PATH RUEDA_PROTOZERO_INCLUDE protozero/pbf_reader.hpp libprotozero-dev)
add_library(rueda_protozero INTERFACE)
target_include_directories(rueda_protozero SYSTEM INTERFACE ${RUEDA_PROTOZERO_INCLUDE})

# zlib's header; the library is opened when a timeline is to be compressed (runtime/observe/timeline).
rueda_find(PATH RUEDA_ZLIB_INCLUDE zlib.h zlib1g-dev)

# Highway: headers only, the dispatch table is ours (collectives/kernels/README.md).
rueda_find(PATH RUEDA_HIGHWAY_INCLUDE hwy/highway.h libhwy-dev)

# libsodium, static: HMAC, random bytes and constant-time comparison for the handshake.
rueda_find(PATH RUEDA_SODIUM_INCLUDE sodium.h libsodium-dev)
rueda_find(LIBRARY RUEDA_SODIUM_LIBRARY libsodium.a libsodium-dev)
add_library(rueda_sodium INTERFACE)
target_include_directories(rueda_sodium SYSTEM INTERFACE ${RUEDA_SODIUM_INCLUDE})
target_link_libraries(rueda_sodium INTERFACE ${RUEDA_SODIUM_LIBRARY})

# xxHash: its header alone, compiled into bindings/c/digest.cc.
rueda_find(PATH RUEDA_XXHASH_INCLUDE xxhash.h libxxhash-dev)
add_library(rueda_xxhash INTERFACE)
target_include_directories(rueda_xxhash SYSTEM INTERFACE ${RUEDA_XXHASH_INCLUDE})

# Open MPI, for librueda_mpi.so alone; without it everything else is built.
if(PkgConfig_FOUND)
  pkg_check_modules(RUEDA_OPENMPI IMPORTED_TARGET QUIET ompi-c)
endif()

# nvcc, for librueda_cuda.so alone (the kernels); without it everything else is built. The newest architecture also
# goes in as PTX, for GPUs to come. nvcc 12.4 knows 80 and 90, nvcc 12.8 and newer all four.
set(RUEDA_CUDA AUTO CACHE STRING "Compile the CUDA kernels: AUTO (where nvcc is), ON, OFF")
set(RUEDA_CUDA_ARCHITECTURES AUTO CACHE STRING
  "Compute capabilities of the CUDA kernels, as 80;90; AUTO: those of 80, 90, 100, 120 that nvcc knows")
if(RUEDA_CUDA)
  find_program(RUEDA_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(NOT RUEDA_NVCC AND NOT RUEDA_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "RUEDA_CUDA=${RUEDA_CUDA}, but nvcc is not in PATH nor in /usr/local/cuda/bin")
  endif()
  if(RUEDA_NVCC AND RUEDA_CUDA_ARCHITECTURES STREQUAL AUTO)
    execute_process(COMMAND ${RUEDA_NVCC} --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "compute_[0-9]+" known "${known}")
    set(all 80 90 100 120)
    foreach(architecture ${all})
      if(NOT "compute_${architecture}" IN_LIST known)
        list(REMOVE_ITEM all ${architecture})
      endif()
    endforeach()
    set(RUEDA_CUDA_ARCHITECTURES ${all})
  endif()
else()
  unset(RUEDA_NVCC CACHE)
endif()

# The launcher's.
rueda_find(PATH RUEDA_CLI11_INCLUDE CLI/CLI.hpp libcli11-dev)
rueda_find(PATH RUEDA_YAML_INCLUDE yaml-cpp/yaml.h libyaml-cpp-dev)
rueda_find(LIBRARY RUEDA_YAML_ARCHIVE libyaml-cpp.a libyaml-cpp-dev)
add_library(rueda_yaml INTERFACE)
target_include_directories(rueda_yaml SYSTEM INTERFACE ${RUEDA_YAML_INCLUDE})
target_link_libraries(rueda_yaml INTERFACE ${RUEDA_YAML_ARCHIVE})

# ncurses, static, for `rueda top`: nothing of it is needed at run time but the terminal's description.
rueda_find(PATH RUEDA_NCURSES_INCLUDE ncurses.h libncurses-dev)
rueda_find(LIBRARY RUEDA_NCURSES_ARCHIVE libncursesw.a libncurses-dev)
rueda_find(LIBRARY RUEDA_TINFO_ARCHIVE libtinfo.a libncurses-dev)
add_library(rueda_ncurses INTERFACE)
target_include_directories(rueda_ncurses SYSTEM INTERFACE ${RUEDA_NCURSES_INCLUDE})
target_link_libraries(rueda_ncurses INTERFACE ${RUEDA_NCURSES_ARCHIVE} ${RUEDA_TINFO_ARCHIVE})

# hwloc's header; its library is opened at run time, where it is installed (ruedarun --bind).
find_path(RUEDA_HWLOC_INCLUDE hwloc.h)

# gRPC with everything below it, static: the launcher then needs none of it at run time. libprotobuf
# and these archives are not position-independent, so they are for programs only.
rueda_find(PATH RUEDA_GRPC_INCLUDE grpcpp/grpcpp.h libgrpc++-dev)
rueda_find(PROGRAM RUEDA_PROTOC protoc protobuf-compiler)
rueda_find(PROGRAM RUEDA_GRPC_PLUGIN grpc_cpp_plugin protobuf-compiler-grpc)
rueda_find(PATH RUEDA_OPENSSL_INCLUDE openssl/ssl.h libssl-dev)
rueda_find(PROGRAM RUEDA_PKG_CONFIG pkg-config pkg-config)
if(RUEDA_BUILD_TESTS)
  rueda_find(PATH RUEDA_CATCH2_INCLUDE catch2/catch.hpp catch2)
endif()
if(rueda_missing)
  list(REMOVE_DUPLICATES rueda_missing_packages)
  list(JOIN rueda_missing_packages " " rueda_missing_packages)
  message(FATAL_ERROR "rueda cannot be built here, this is missing (Debian's package):${rueda_missing}\n"
    "On Debian and Ubuntu:  apt-get install ${rueda_missing_packages}")
endif()
find_package(Protobuf REQUIRED)
pkg_check_modules(RUEDA_GRPC REQUIRED grpc++ protobuf)
set(rueda_grpc_libraries ${RUEDA_GRPC_STATIC_LIBRARIES})
list(REMOVE_DUPLICATES rueda_grpc_libraries)
list(REMOVE_ITEM rueda_grpc_libraries dl pthread rt atomic m)
add_library(rueda_grpc INTERFACE)
target_link_libraries(rueda_grpc INTERFACE
  -Wl,-Bstatic -Wl,--start-group ${rueda_grpc_libraries} -Wl,--end-group -Wl,-Bdynamic
  ${CMAKE_DL_LIBS} Threads::Threads)

# The tests': Catch2 v2; libprotobuf is also the oracle of proto/.
if(RUEDA_BUILD_TESTS)
  find_package(Catch2 2 REQUIRED)
endif()
