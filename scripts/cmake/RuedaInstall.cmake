# What `cmake --install` puts into a prefix, and the target rueda_product that builds just that:
#
#   bin/ruedarun, bin/rueda                      the launcher and the tool
#   lib/librueda.so.2                            the library
#   lib/librueda_mpi.so, lib/librueda_cuda.so    its plugins, where they were built
#   lib/librueda_xla.so                          its operations as a custom call of XLA, for rueda.jax
#   lib/librueda_tf.so                           its operations as ops of TensorFlow, for rueda.tensorflow
#   share/                                       manual pages; completions for bash, zsh and fish
#   include/rueda/                               rueda.h (C), rueda.hpp and its parts (C++20)
#   lib/cmake/rueda/, lib/pkgconfig/rueda.pc     find_package(rueda) -> rueda::rueda; pkg-config rueda
#
# Component "rueda" is all of it but for the link lib/librueda.so, which is "rueda_namelink": wheels hold no links, and nothing
# here needs it, the licences, "rueda_licences", and the example of the Python package, "rueda_python". The prefix may be moved afterwards: every path is relative to the files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_custom_target(rueda_product)

if(TARGET rueda)
  add_dependencies(rueda_product rueda)
  install(TARGETS rueda EXPORT ruedaTargets COMPONENT rueda
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_COMPONENT rueda_namelink
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  if(TARGET rueda_mpi)
    add_dependencies(rueda_product rueda_mpi)
    install(TARGETS rueda_mpi COMPONENT rueda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
  if(TARGET rueda_xla)
    add_dependencies(rueda_product rueda_xla)
    install(TARGETS rueda_xla COMPONENT rueda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
  if(TARGET rueda_tf)
    add_dependencies(rueda_product rueda_tf)
    install(TARGETS rueda_tf COMPONENT rueda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
  if(TARGET rueda_cuda_kernels)
    add_dependencies(rueda_product rueda_cuda_kernels)
    install(PROGRAMS ${CMAKE_BINARY_DIR}/lib/librueda_cuda.so COMPONENT rueda DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
  install(DIRECTORY bindings/c/include/rueda bindings/cpp/include/rueda COMPONENT rueda
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

  set(rueda_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rueda)
  install(EXPORT ruedaTargets NAMESPACE rueda:: DESTINATION ${rueda_cmake_dir} COMPONENT rueda)
  configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ruedaConfig.cmake.in
    ${PROJECT_BINARY_DIR}/ruedaConfig.cmake INSTALL_DESTINATION ${rueda_cmake_dir})
  # Before 1.0 a minor version may break the C++ header; the C ABI has a version of its own.
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/ruedaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/ruedaConfig.cmake ${PROJECT_BINARY_DIR}/ruedaConfigVersion.cmake
    DESTINATION ${rueda_cmake_dir} COMPONENT rueda)

  # From lib/pkgconfig up to the prefix, however deep the library folder is.
  file(RELATIVE_PATH rueda_pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" rueda_pc_prefix "${rueda_pc_prefix}")
  configure_file(${CMAKE_CURRENT_LIST_DIR}/rueda.pc.in ${PROJECT_BINARY_DIR}/rueda.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/rueda.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT rueda)
endif()

add_dependencies(rueda_product rueda_manuals)
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/ COMPONENT rueda DESTINATION ${CMAKE_INSTALL_DATAROOTDIR})

# Wheels have them in their own place.
install(FILES LICENSE THIRD_PARTY COMPONENT rueda_licences DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/rueda)

# What `rueda demo` runs.
install(FILES examples/train_digits.py COMPONENT rueda_python DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/rueda/examples)
install(FILES examples/data/digits.csv.gz examples/data/README.md COMPONENT rueda_python
  DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/rueda/examples/data)

foreach(program ruedarun rueda_tool)
  if(TARGET ${program})
    add_dependencies(rueda_product ${program})
    install(TARGETS ${program} COMPONENT rueda RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
