# What was found, printed at the end of configuration.
message(STATUS "rueda ${PROJECT_VERSION}")
message(STATUS "  build type   ${CMAKE_BUILD_TYPE}")
message(STATUS "  compiler     ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
message(STATUS "  sanitizers   ${RUEDA_SANITIZE}")
message(STATUS "  tests        ${RUEDA_BUILD_TESTS}")
message(STATUS "  examples     ${RUEDA_BUILD_EXAMPLES}")
message(STATUS "  CUDA, NCCL and MPI are looked for at run time: ruedarun --check-build")
