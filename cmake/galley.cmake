# Common settings and the two functions with which every module and test is declared.

add_library(galley_options INTERFACE)
target_include_directories(galley_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
target_compile_options(galley_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers -fno-math-errno>)
if(GALLEY_WERROR)
  target_compile_options(galley_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(GALLEY_SANITIZE)
  # GCC sees uninitialized values in the code that it instruments itself.
  target_compile_options(galley_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${GALLEY_SANITIZE} -fno-omit-frame-pointer
    -Wno-maybe-uninitialized>)
  target_link_options(galley_options INTERFACE -fsanitize=${GALLEY_SANITIZE})
endif()

# galley_module(NAME DEPENDS ... PRIVATE ...)
# A static library of all .cc files of this folder (and its subfolders unless they are modules of
# their own). Target name: galley_NAME. DEPENDS are other galley modules, PRIVATE third parties.
function(galley_module NAME)
  cmake_parse_arguments(ARG "" "" "DEPENDS;PRIVATE;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS *.cc)
  endif()
  add_library(galley_${NAME} STATIC ${ARG_SOURCES})
  target_link_libraries(galley_${NAME} PUBLIC galley_options)
  foreach(DEPENDENCY ${ARG_DEPENDS})
    target_link_libraries(galley_${NAME} PUBLIC galley_${DEPENDENCY})
  endforeach()
  target_link_libraries(galley_${NAME} PRIVATE ${ARG_PRIVATE})
endfunction()

# galley_test(NAME DIRECTORY DEPENDS ... [TIMEOUT seconds] [LABELS ...])
# One test program of all *_test.cc files in DIRECTORY; every gtest case is a ctest test.
function(galley_test NAME DIRECTORY)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPENDS;LABELS;PRIVATE" ${ARGN})
  file(GLOB SOURCES CONFIGURE_DEPENDS ${DIRECTORY}/*.cc)
  if(NOT SOURCES)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)   # an empty value would swallow the property behind it
  endif()
  add_executable(test_${NAME} ${SOURCES})
  foreach(DEPENDENCY ${ARG_DEPENDS})
    target_link_libraries(test_${NAME} PRIVATE galley_${DEPENDENCY})
  endforeach()
  target_link_libraries(test_${NAME} PRIVATE galley_options galley_testing GTest::gtest_main
                        ${ARG_PRIVATE})
  # DISABLED_ bodies are what tests start as processes of their own; they are no tests.
  gtest_discover_tests(test_${NAME} DISCOVERY_MODE PRE_TEST TEST_PREFIX ${NAME}.
    TEST_FILTER "-*.DISABLED_*"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()
