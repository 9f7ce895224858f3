# must(COMMAND...): says it, runs it, and ends everything when it fails.
function(must)
  list(JOIN ARGN " " command)
  message(STATUS "${command}")
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY TIMEOUT 120)
endfunction()
