# `cpack` in a build folder makes rueda_VERSION_ARCHITECTURE.deb: library, launcher, headers, CMake's and pkg-config's files.
# It lies in /usr/lib, which the dynamic linker searches on every Debian. Python comes as a wheel (docs/install.md).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME rueda)
set(CPACK_PACKAGE_VENDOR rueda)
set(CPACK_PACKAGE_CONTACT "the rueda authors <rueda@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training with Horovod's programming model")
set(CPACK_PACKAGE_DESCRIPTION "A runtime for training on many processes: collectives over shared memory, TCP, MPI and NCCL, and the
 launcher that starts and supervises the ranks. Needs no MPI, GPU or server.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL rueda rueda_namelink rueda_licences)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.34), libgcc-s1")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libhwloc15, openmpi-bin, openssh-client")
# The linker's cache is made anew when the library comes or goes.
file(WRITE ${PROJECT_BINARY_DIR}/deb/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/deb/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
