# The version by the newest tag vX.Y.Z, as it stands when CMake is run: 1.2.0 at the tag itself,
# 1.2.0+5.gabc1234 five commits later. `fallback` where SOURCE is no git repository, or has no tag.
function(version_by_tag source fallback result)
  set(${result} "${fallback}" PARENT_SCOPE)
  if(NOT EXISTS "${source}/.git")
    return()
  endif()
  execute_process(COMMAND git -C "${source}" describe --tags --match "v[0-9]*"
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    return()
  endif()
  string(REGEX REPLACE "^v" "" described "${described}")
  string(REGEX REPLACE "-([0-9]+)-g" "+\\1.g" described "${described}")
  set(${result} "${described}" PARENT_SCOPE)
endfunction()
