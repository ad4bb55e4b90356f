# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` copies: the library, the program, its manual, the headers, and how others find them.
#
# The headers keep their paths below one folder, since they include each other as "gaugeblock.h".
include(CMakePackageConfigHelpers)

set(header_dir ${CMAKE_INSTALL_INCLUDEDIR}/gaugeblock)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gaugeblock)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

target_include_directories(gaugeblock INTERFACE $<INSTALL_INTERFACE:${header_dir}>)
install(TARGETS gaugeblock EXPORT gaugeblock LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES gaugeblock.h gaugeblock_quantiser.h DESTINATION ${header_dir})
foreach(module quant reference fixtures)
  install(FILES ${module}/${module}.h DESTINATION ${header_dir}/${module})
endforeach()
install(FILES fixtures/vectors.h DESTINATION ${header_dir}/fixtures) # fixtures.h includes it

foreach(program gaugeblock_program gaugeblock_mpi)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
if(TARGET gaugeblock_cuda)
  install(TARGETS gaugeblock_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# The program writes its manual pages and the shells' completions from its own options.
if(TARGET gaugeblock_program AND NOT CMAKE_CROSSCOMPILING)
  set(manual ${PROJECT_BINARY_DIR}/manual)
  add_custom_command(OUTPUT ${manual}/man1/gaugeblock.1
    COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}
    COMMAND gaugeblock_program manual ${manual}
    DEPENDS gaugeblock_program
    VERBATIM)
  add_custom_target(gaugeblock_manual ALL DEPENDS ${manual}/man1/gaugeblock.1)
  add_dependencies(gaugeblock_installed gaugeblock_manual)
  # A build of the program alone has none.
  install(DIRECTORY ${manual}/man1/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
  install(FILES ${manual}/bash/gaugeblock
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions OPTIONAL)
  install(FILES ${manual}/zsh/_gaugeblock DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions OPTIONAL)
  install(FILES ${manual}/fish/gaugeblock.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)
endif()
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.md" PATTERN "*.c"
  PATTERN results EXCLUDE)

# Both kinds of package file name the prefix relative to themselves, so the installed tree can be moved.
file(RELATIVE_PATH prefix_from_pkgconfig
  ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pkgconfig ${prefix_from_pkgconfig})
configure_file(cmake/gaugeblock.pc.in gaugeblock.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gaugeblock.pc DESTINATION ${pkgconfig_dir})

configure_package_config_file(cmake/gaugeblockConfig.cmake.in gaugeblockConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(gaugeblockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/gaugeblockConfig.cmake
  ${PROJECT_BINARY_DIR}/gaugeblockConfigVersion.cmake
  DESTINATION ${package_dir})
install(EXPORT gaugeblock FILE gaugeblockTargets.cmake NAMESPACE gaugeblock:: DESTINATION ${package_dir})

if(BUILD_TESTING)
  add_test(NAME install COMMAND sh ${PROJECT_SOURCE_DIR}/tests/test_install.sh ${PROJECT_BINARY_DIR})
  set_tests_properties(install PROPERTIES
    LABELS unit
    ENVIRONMENT "CC=${CMAKE_C_COMPILER};CFLAGS=$<$<BOOL:${GAUGEBLOCK_SANITIZE}>:-fsanitize=address$<COMMA>undefined>")
  add_test(NAME setup COMMAND sh ${PROJECT_SOURCE_DIR}/tests/test_setup.sh ${PROJECT_SOURCE_DIR})
  set_tests_properties(setup PROPERTIES LABELS unit)
endif()
