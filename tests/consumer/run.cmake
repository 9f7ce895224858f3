# Installs this build into a fresh prefix and uses it as a stranger would: find_package and pkg-config, C and C++, alone and
# under ruedarun. Run by ctest:
#   cmake -D BUILD=<build folder> -D SOURCE=<project/> -D WORK=<scratch folder> -D GENERATOR= -D CC= -D CXX= -P run.cmake
include(${CMAKE_CURRENT_LIST_DIR}/must.cmake)

file(REMOVE_RECURSE ${WORK})
# Installed in one place and moved to another: nothing may remember where it was.
must(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first --component rueda)
set(prefix "${WORK}/a prefix with spaces")
file(RENAME ${WORK}/first ${prefix})
find_program(RUEDARUN ruedarun PATHS ${prefix}/bin NO_DEFAULT_PATH REQUIRED)

function(run program)
  must(${program})
  must(${RUEDARUN} -np 2 ${program})
endfunction()

# 1. find_package
must(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -D CMAKE_C_COMPILER=${CC}
  -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH=${prefix})
must(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer_c)
run(${WORK}/build/consumer_cpp)

# 2. pkg-config
file(GLOB_RECURSE pc ${prefix}/*/rueda.pc)
cmake_path(GET pc PARENT_PATH pc_folder)
set(ENV{PKG_CONFIG_PATH} ${pc_folder})
find_program(PKG_CONFIG NAMES pkg-config pkgconf REQUIRED)
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs rueda OUTPUT_VARIABLE flags
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
must(${CC} ${SOURCE}/consumer.c ${flags} -o ${WORK}/pkg_config_c)
must(${CXX} -std=c++20 ${SOURCE}/consumer.cc ${flags} -o ${WORK}/pkg_config_cpp)
cmake_path(GET pc_folder PARENT_PATH libdir)
set(ENV{LD_LIBRARY_PATH} ${libdir})
run(${WORK}/pkg_config_c)
run(${WORK}/pkg_config_cpp)
