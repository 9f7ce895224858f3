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
find_path(RUEDA_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
find_path(RUEDA_YAML_INCLUDE yaml-cpp/yaml.h REQUIRED)
find_library(RUEDA_YAML_ARCHIVE libyaml-cpp.a REQUIRED)
add_library(rueda_yaml INTERFACE)
target_include_directories(rueda_yaml SYSTEM INTERFACE ${RUEDA_YAML_INCLUDE})
target_link_libraries(rueda_yaml INTERFACE ${RUEDA_YAML_ARCHIVE})

# hwloc's header; its library is opened at run time, where it is installed (ruedarun --bind).
find_path(RUEDA_HWLOC_INCLUDE hwloc.h)

# gRPC with everything below it, static: the launcher then needs none of it at run time. libprotobuf
# and these archives are not position-independent, so they are for programs only.
find_package(Protobuf REQUIRED)
find_program(RUEDA_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
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
