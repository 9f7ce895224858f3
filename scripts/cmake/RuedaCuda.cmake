# librueda_cuda.so, the kernels, where nvcc is. Nothing links it; it is opened at run time. Folders add parts, the top
# CMakeLists.txt puts them together behind the last.

# rueda_cuda_part(SOURCE): one source for nvcc, which says what it includes.
function(rueda_cuda_part source)
  if(NOT RUEDA_NVCC OR RUEDA_SANITIZE)
    return()
  endif()
  set(code)
  foreach(architecture ${RUEDA_CUDA_ARCHITECTURES})
    list(APPEND code -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET RUEDA_CUDA_ARCHITECTURES -1 newest)
  list(APPEND code -gencode=arch=compute_${newest},code=compute_${newest})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${RUEDA_NVCC} -std=c++17 -O3 -c -I${PROJECT_SOURCE_DIR} ${code}
      -Xcompiler=-fPIC,-fvisibility=hidden,-Wall -MD -MF ${object}.d -o ${object} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMENT "Compiling ${source} for ${RUEDA_CUDA_ARCHITECTURES}" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY RUEDA_CUDA_OBJECTS ${object})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  add_custom_target(rueda_cuda_${folder}_${name} DEPENDS ${object})
  set_property(GLOBAL APPEND PROPERTY RUEDA_CUDA_PARTS rueda_cuda_${folder}_${name})
endfunction()

# The library from all parts; target rueda_cuda_kernels.
function(rueda_cuda_library)
  get_property(objects GLOBAL PROPERTY RUEDA_CUDA_OBJECTS)
  get_property(parts GLOBAL PROPERTY RUEDA_CUDA_PARTS)
  if(NOT objects)
    return()
  endif()
  set(plugin ${CMAKE_BINARY_DIR}/lib/librueda_cuda.so)
  add_custom_command(OUTPUT ${plugin}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/lib
    COMMAND ${RUEDA_NVCC} -shared -cudart static -Xcompiler -static-libstdc++ -Xlinker -s,--exclude-libs,ALL -o ${plugin} ${objects}
    DEPENDS ${objects} ${parts}
    COMMENT "Linking librueda_cuda.so" VERBATIM)
  add_custom_target(rueda_cuda_kernels ALL DEPENDS ${plugin})
endfunction()
