# Where rueda does not run: said at once, instead of by the first header that is missing.

# Before a compiler is looked for.
function(rueda_check_system)
  set(system ${CMAKE_HOST_SYSTEM_NAME})
  if(DEFINED CMAKE_SYSTEM_NAME)
    set(system ${CMAKE_SYSTEM_NAME})
  endif()
  if(NOT system STREQUAL Linux)
    message(FATAL_ERROR "rueda runs on Linux, this is ${system}: build and run it in a Linux container or virtual machine")
  endif()
endfunction()

# What the compiler compiles for.
function(rueda_check_target)
  include(CheckSymbolExists)
  check_symbol_exists(__GLIBC__ features.h RUEDA_HAS_GLIBC)
  if(NOT RUEDA_HAS_GLIBC)
    message(FATAL_ERROR "rueda needs glibc, and ${CMAKE_C_COMPILER} compiles for another C library (musl?): "
      "use an image or a system with glibc, as Debian, Ubuntu or RHEL")
  endif()
  if(NOT CMAKE_SIZEOF_VOID_P EQUAL 8 OR NOT CMAKE_C_BYTE_ORDER STREQUAL LITTLE_ENDIAN)
    message(FATAL_ERROR "rueda needs a little-endian 64-bit processor, x86-64 or arm64; this is ${CMAKE_SYSTEM_PROCESSOR}")
  endif()
endfunction()
