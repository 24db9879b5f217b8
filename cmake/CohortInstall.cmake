# Installs the library, its headers, the command, a CMake package and a pkg-config file.
include(CMakePackageConfigHelpers)

install(TARGETS cohort EXPORT cohortTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS cohort_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cohort DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(EXPORT cohortTargets NAMESPACE cohort::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cohort)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/cohortConfig.cmake.in
  ${PROJECT_BINARY_DIR}/cohortConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cohort)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cohortConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cohortConfig.cmake
  ${PROJECT_BINARY_DIR}/cohortConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cohort)

# A static library passes on what it was linked with, as cohortConfig.cmake does for CMake.
set(COHORT_PC_LIBS "")
if(NOT BUILD_SHARED_LIBS)
  set(needed -lspdlog -lfmt -lhwy ${SODIUM_LIBRARY})
  if(COHORT_HAVE_ONEDNN)
    list(APPEND needed ${DNNL_LIBRARY})
  endif()
  if(COHORT_HAVE_GLOO)
    list(APPEND needed ${GLOO_LIBRARY})
  endif()
  if(COHORT_HAVE_ZLIB)
    list(APPEND needed -lz)
  endif()
  if(COHORT_HAVE_NCCL)
    list(APPEND needed ${NCCL_LIBRARY})
  endif()
  if(COHORT_HAVE_CUDA)
    list(APPEND needed ${CUDA_cudart_LIBRARY})
  endif()
  list(JOIN needed " " COHORT_PC_LIBS)
  string(APPEND COHORT_PC_LIBS " -pthread -ldl")
endif()
# Relative to the file, so that an installed tree may be moved.
file(RELATIVE_PATH COHORT_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file(${PROJECT_SOURCE_DIR}/cmake/cohort.pc.in ${PROJECT_BINARY_DIR}/cohort.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cohort.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
