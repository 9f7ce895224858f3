# Makes the Debian package of this build, installs it into an empty Debian tree, uses and removes it. Run by ctest:
#   cmake -D BUILD=<build folder> -D SOURCE=<project/> -D WORK=<scratch folder> -D CC= -P deb.cmake
include(${CMAKE_CURRENT_LIST_DIR}/must.cmake)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/tree/var/lib/dpkg/info ${WORK}/tree/var/lib/dpkg/updates)
file(TOUCH ${WORK}/tree/var/lib/dpkg/status)
find_program(CPACK cpack REQUIRED)
must(${CPACK} --config ${BUILD}/CPackConfig.cmake -B ${WORK}/made -G DEB)
file(GLOB deb ${WORK}/made/rueda_*.deb)

# What it depends on is not in the tree, and its programs run here: only the package is looked at.
set(DPKG dpkg --root=${WORK}/tree --force-depends --force-not-root --force-script-chrootless --log=${WORK}/log)
must(${DPKG} --install ${deb})
execute_process(COMMAND ${DPKG} -L rueda OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
foreach(file /usr/bin/ruedarun /usr/bin/rueda /usr/lib/librueda.so.2 /usr/lib/librueda.so /usr/include/rueda/rueda.h
        /usr/lib/cmake/rueda/ruedaConfig.cmake /usr/lib/pkgconfig/rueda.pc /usr/share/doc/rueda/LICENSE
        /usr/share/doc/rueda/THIRD_PARTY /usr/share/man/man1/ruedarun.1)
  if(NOT listed MATCHES "${file}\n" OR NOT EXISTS ${WORK}/tree${file})
    message(FATAL_ERROR "${file} is not in ${deb}:\n${listed}")
  endif()
endforeach()

set(usr ${WORK}/tree/usr)
must(${CC} -I${usr}/include ${SOURCE}/consumer.c -L${usr}/lib -lrueda -o ${WORK}/consumer)
set(ENV{LD_LIBRARY_PATH} ${usr}/lib)
must(${usr}/bin/ruedarun -np 2 ${WORK}/consumer)
must(${usr}/bin/rueda --version)

must(${DPKG} --purge rueda)
file(GLOB_RECURSE left LIST_DIRECTORIES true ${usr}/*)
if(left)
  message(FATAL_ERROR "left behind: ${left}")
endif()
