# What `cmake --install` gives: the program with its presets, manual and completions; the library
# with its public headers, for find_package(ddaebm) and pkg-config; the Python module. And packages
# of each (`cpack`).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The program.
set(pages ${PROJECT_BINARY_DIR}/share)
file(MAKE_DIRECTORY ${pages})
add_custom_command(OUTPUT ${pages}/ddaebm.1.gz ${pages}/bash ${pages}/zsh ${pages}/fish
  COMMAND ddaebm_app manual | gzip -9n > ${pages}/ddaebm.1.gz
  COMMAND ddaebm_app completion bash > ${pages}/bash
  COMMAND ddaebm_app completion zsh > ${pages}/zsh
  COMMAND ddaebm_app completion fish > ${pages}/fish
  DEPENDS ddaebm_app VERBATIM)
add_custom_target(ddaebm_pages ALL DEPENDS ${pages}/ddaebm.1.gz)
set(program COMPONENT program)
install(TARGETS ddaebm_app ${program})
install(DIRECTORY presets DESTINATION ${CMAKE_INSTALL_DATADIR}/ddaebm ${program})
install(FILES ${pages}/ddaebm.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 ${program})
install(FILES ${pages}/bash RENAME ddaebm ${program}
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${pages}/zsh RENAME _ddaebm ${program}
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${pages}/fish RENAME ddaebm.fish ${program}
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES LICENSE RENAME copyright ${program} DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md CHANGELOG.md ${program} DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The library. Public are ddaebm.h and what it includes, and what methods are made of.
set(library COMPONENT library)
set(public_headers
  ddaebm/ddaebm.h ddaebm/config.h ddaebm/error.h ddaebm/random.h
  ddaebm/data/source.h ddaebm/data/toy.h
  ddaebm/dist/launch.h ddaebm/dist/ranks.h
  ddaebm/io/safetensors.h
  ddaebm/methods/energy_samples.h ddaebm/methods/method.h ddaebm/methods/one_energy.h
  ddaebm/metrics/ranking.h
  ddaebm/nets/image_config.h ddaebm/nets/mlp.h ddaebm/nets/networks.h ddaebm/nets/nice.h
  ddaebm/nets/plain_networks.h
  ddaebm/ops/bend.h ddaebm/ops/resample.h ddaebm/ops/time_mlp.h ddaebm/ops/timed_chain.h
  ddaebm/train/checkpoint.h ddaebm/train/flat.h ddaebm/train/graph.h ddaebm/train/model.h ddaebm/train/ood.h
  ddaebm/train/optimizer.h ddaebm/train/profile.h ddaebm/train/settings.h ddaebm/train/trainer.h)
foreach(header ${public_headers})
  get_filename_component(room ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${room} ${library})
endforeach()
set(reference_input "${public_headers}")
list(TRANSFORM reference_input PREPEND ${PROJECT_SOURCE_DIR}/)
list(JOIN reference_input " " reference_input)
configure_file(docs/Doxyfile.in Doxyfile @ONLY)
add_custom_target(ddaebm_reference COMMAND doxygen ${PROJECT_BINARY_DIR}/Doxyfile)
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ddaebm)
install(TARGETS ddaebm EXPORT ddaebmTargets ${library}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT ddaebmTargets NAMESPACE ddaebm:: DESTINATION ${config_folder} ${library})
configure_file(cmake/ddaebmConfig.cmake.in ddaebmConfig.cmake @ONLY)
write_basic_package_version_file(ddaebmConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/LibTorch.cmake ${PROJECT_BINARY_DIR}/ddaebmConfig.cmake
  ${PROJECT_BINARY_DIR}/ddaebmConfigVersion.cmake DESTINATION ${config_folder} ${library})

set(torch_cflags "${TORCH_CXX_FLAGS}")
foreach(folder ${TORCH_INCLUDE_DIRS})
  if(NOT folder STREQUAL /usr/include)  # which compilers know, and want to look at last
    string(APPEND torch_cflags " -isystem ${folder}")
  endif()
endforeach()
set(torch_libs "-ltorch -ltorch_cpu -lc10")
if(DDAEBM_CUDA)
  string(APPEND torch_libs " -ltorch_cuda -lc10_cuda")
endif()
file(RELATIVE_PATH from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/ddaebm.pc.in ddaebm.pc.in @ONLY)
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/ddaebm.pc INPUT ${PROJECT_BINARY_DIR}/ddaebm.pc.in)
install(FILES ${PROJECT_BINARY_DIR}/ddaebm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  ${library})

# The Python module, where Debian's Python looks for it.
if(TARGET ddaebm_python)
  install(TARGETS ddaebm_python COMPONENT python
    DESTINATION lib/python3/dist-packages/ddaebm)
  install(FILES ${PROJECT_BINARY_DIR}/python/ddaebm/__init__.py COMPONENT python
    DESTINATION lib/python3/dist-packages/ddaebm)
endif()

# Debian packages, one a component.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_NAME ddaebm)
set(CPACK_PACKAGE_VERSION ${DDAEBM_VERSION})
set(CPACK_PACKAGE_CONTACT "The ddaebm developers <ddaebm@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Diffusion adversarial energy-based models")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION
  "Trains, samples and scores them: a generator that draws a sample in four network evaluations,\nand an energy that says how likely an input is. The command line.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The C++ library, static, with its headers.")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "The Python module: samples and scores as NumPy arrays.")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME ddaebm)
# Debian's LibTorch takes whatever BLAS there is; the reference BLAS is 70 times slower.
set(fast_blas "libopenblas0-pthread | libopenblas0")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS "${fast_blas}")
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-ddaebm)
if(TARGET ddaebm_python)  # which is made for one version of Python
  math(EXPR next_minor "${Python_VERSION_MINOR} + 1")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.${Python_VERSION_MINOR}), python3 (<< 3.${next_minor}), python3-numpy, ${fast_blas}")
endif()
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libddaebm-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS
  "libtorch-dev, libfmt-dev, libzip-dev, libturbojpeg0-dev, libpng-dev, libwebp-dev, zlib1g-dev, libarchive-dev, libcurl4-openssl-dev, libssl-dev")
include(CPack)
